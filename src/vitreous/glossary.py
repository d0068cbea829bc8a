"""The words that messages and pages use without explaining them, one sentence each."""

from __future__ import annotations

GLOSSARY = {
    "accuracy": "The fraction of images whose most probable class is the right one; also called top-1.",
    "attention": (
        "How a Vision Transformer mixes tokens: each token takes a weighted mean of all tokens, and the weights, "
        "which sum to 1, say what it looked at."
    ),
    "attention sink": (
        "A token that takes a large weight in every image although nothing is seen there, so that its patch glows in "
        "attention maps without meaning anything."
    ),
    "augmentation": (
        "Random changes of the training images (crops, mirror images, colours), so that a model learns what does not "
        "depend on them."
    ),
    "batch": "The images that pass through the model together.",
    "budget": "The time that a command may take in all, such as 5m; the number of training steps follows from it.",
    "bundle": (
        "A folder with everything that is needed to use a model: weights, configuration, class names, preprocessing, "
        "a model card, and a checksum of each file."
    ),
    "calibration": (
        "How well probabilities agree with accuracy: of the predictions with a probability of 80 %, 80 % should be "
        "right."
    ),
    "checkpoint": "The weights of a model in a file, with the state of its training if it is to be resumed.",
    "class token": "An extra token that belongs to no patch and collects what the classifier reads.",
    "confidence": "The probability that a model gives to its prediction.",
    "confidence interval": (
        "A range around a measured value that would contain the true one in 95 % of such measurements; it is narrower "
        "with more images."
    ),
    "distillation": "Training a model on the predictions of another, the teacher, beside the labels.",
    "ECE": "Expected calibration error: how far confidence is from accuracy, on average; 0 is best.",
    "embedding": "The vector that stands for an image or a patch inside a model.",
    "engine": "The program that computes a model: torch, OpenVINO or ONNX Runtime.",
    "epoch": "One pass over all training images.",
    "evaluation": "Measuring a model on labelled images that it was not trained on.",
    "few-shot": "Learning a class from a few images, such as 1, 5 or 10.",
    "fine-tuning": "Training a model further that has already been trained on other images.",
    "FLOPs": "Floating-point operations; a multiplication and an addition count as two.",
    "frozen features": (
        "What a model computes from images while its weights stay as they are; a small classifier is then trained on "
        "these numbers."
    ),
    "head": (
        "One of the parallel attentions in a layer, each with weights of its own, counted from 0; the classifier is "
        "called a head too."
    ),
    "int8": "Computing in 8-bit integers, which is faster and a little less exact than 32-bit floating point (fp32).",
    "k-NN": "k nearest neighbours: an image gets the class of the training images whose features are most similar.",
    "layer": "One block of the network; layers are counted from 0, and from the end if negative: -1 is the last one.",
    "learning rate": "How far each training step changes the weights.",
    "linear probe": (
        "A linear classifier on frozen features: it measures what a model has learned without training it further."
    ),
    "logits": "The outputs of a classifier before softmax makes probabilities of them.",
    "MAE": "Masked autoencoder: a model that learns without labels by reconstructing hidden patches.",
    "majority class": (
        "The most frequent class of the data; a model is useful only if it has a higher accuracy than always "
        "predicting that one."
    ),
    "merge": (
        "Merging similar tokens in every second block, so that later blocks have fewer to compute: faster, and a "
        "little less accurate."
    ),
    "overrides": "Single fields of a recipe that are set by hand, such as lr=1e-4 or batch_size=64.",
    "patch": "One of the squares that an image is cut into, such as 16x16 pixels.",
    "preprocessing": (
        "How an image is resized, cropped and normalized before the model sees it; it belongs to the weights."
    ),
    "pretraining": "Training on many images, with or without labels, before fine-tuning on those of interest.",
    "probe": "A simple classifier on frozen features (k-NN, linear, few-shot) that measures what they are worth.",
    "pseudo-label": "A label that a model has given to an image, rather than a person.",
    "recipe": "A complete set of training settings: model, optimizer, schedule and augmentation.",
    "register": "An extra token without a patch, in which a model can keep what belongs to the image as a whole.",
    "relevance": (
        "An explanation that combines attention with the gradient of a class: which patches spoke for that class."
    ),
    "representation": "The vector that a network computes for an image, from which a classifier predicts.",
    "run folder": "The folder of one training: its configuration, metrics, checkpoints, bundle and report.",
    "seed": "The number that random choices follow from; the same seed gives the same result.",
    "shard": "One of the large files that a dataset is packed into.",
    "split": (
        "One of the parts of a dataset: train (to learn from), val (to choose the best weights and settings), test "
        "(to measure, once)."
    ),
    "student": "The model that learns from a teacher's predictions.",
    "teacher": "A model whose predictions another one learns from.",
    "temperature": "The number that logits are divided by before softmax; above 1 makes probabilities less extreme.",
    "token": "One of the vectors that a Vision Transformer computes with: one per patch, and a few extra ones.",
    "token labels": "A label for every patch, given by a teacher.",
    "top-5": "The fraction of images whose right class is among the five most probable ones.",
    "validation": (
        "Measuring on the val split during training, to choose the best weights; the accuracy there is a little too "
        "high for that reason."
    ),
    "weights": "The numbers in a model that training changes; also a file of them.",
}
