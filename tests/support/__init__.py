"""What tests of several rooms share.

Data and models
  colours            images of three colours, and a bundle that tells them apart
  greys              dark and light images, weights to fine-tune, and a short training
  tiny_pretraining   pre-training recipes that take no time, and images for them
  images, tars     small image files; tar files, good and bad
  miniatures         every public dataset in miniature, in its owners' format
  hostile_data       data that no reader should trust
  make_builtin       a script that makes the images in src/vitreous/data/builtin
  tiny_models        small ViTs with random weights, and their preprocessing
  variants           one small ViT for each variant that the configuration can express
  random_networks    small convolutional networks with random weights
  tiny_networks      a tiny network of every family, as a bundle
  tiny_conv          the family in extensions/, registered
  extensions/        an objective and a family from outside the package
  known_model        a ViT whose attention is known
  published          tensors in the names and shapes of published checkpoints

Independent truth
  numpy_vit          the paper's equations in NumPy
  numpy_steps        the same, step by step, for the walkthrough
  numpy_merge        token merging in NumPy
  dino_parts         DINO's loss in NumPy
  in_parts           a batch computed in micro-batches
  comparisons        a comparison with known accuracies
  transfers          a transfer with known accuracies
  contents           results with class names that try to break a page

Processes, servers, browsers
  commands           run a command in this process or in a forked one; check a refusal
  zygote             the process that `commands` forks
  fake_clock         a clock that only training steps move
  killing            a training that is killed and resumed
  together           trainings in one process and in two
  ports              free ports
  web                a web server that misbehaves as told
  hub                a hub on loopback that serves folders as the Hugging Face hub does
  serving            our server in a thread
  live_server        our server in a process
  chromium           a browser
  page_driving       the server's page, as a person uses it
"""
