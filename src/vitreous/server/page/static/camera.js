// A photograph by the camera of a machine without a touch screen; a phone's own camera opens by the field for files.

const get = (id) => document.getElementById(id);

// take: is given the photograph as a file; fail: is given what went wrong.
export async function offerCamera(take, fail) {
  const devices = await navigator.mediaDevices?.enumerateDevices().catch(() => []); // none where the page is not secure
  get("webcam").hidden = !devices?.some((device) => device.kind === "videoinput");
  get("webcam").addEventListener("click", () => open().catch((error) => fail(new Error(sentence(error)))));
  get("shoot").addEventListener("click", async () => {
    const file = await photograph(get("viewfinder"));
    get("take-photo").close();
    take([file]);
  });
  get("leave-camera").addEventListener("click", () => get("take-photo").close());
  get("take-photo").addEventListener("close", stop);
}

async function open() {
  const stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1280 } } });
  get("viewfinder").srcObject = stream;
  get("shoot").disabled = true;
  get("take-photo").showModal();
  await get("viewfinder").play();
  get("shoot").disabled = false;
  get("shoot").focus();
}

function stop() {
  for (const track of get("viewfinder").srcObject?.getTracks() ?? []) track.stop();
  get("viewfinder").srcObject = null;
}

async function photograph(video) {
  const canvas = new OffscreenCanvas(video.videoWidth, video.videoHeight);
  canvas.getContext("2d").drawImage(video, 0, 0);
  return new File([await canvas.convertToBlob({ type: "image/jpeg", quality: 0.95 })], "photo.jpg", { type: "image/jpeg" });
}

function sentence(error) {
  if (error.name === "NotAllowedError") return "The browser does not let this page use the camera; allow it in the page's settings.";
  return "The camera does not answer; perhaps another program uses it.";
}
