// Questions to the server: the token where it wants one, a second try where it is busy, and its sentence where it refuses.

const KEY = "vitreous-token";
let token = sessionStorage.getItem(KEY);
const LONGEST_WAIT = 10; // seconds: whoever looks at the page would take it for broken
let asking = null;

export async function ask(path, { params = {}, body = null, tries = 4 } = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== null && value !== undefined);
  const query = new URLSearchParams(given).toString();
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const method = body ? "POST" : "GET";
  let answer;
  try {
    answer = await fetch(query ? `${path}?${query}` : path, { method, body, headers });
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  if (answer.ok) return answer;
  if (answer.status === 401) {
    await askForToken(headers.Authorization !== undefined);
    return ask(path, { params, body, tries });
  }
  if (answer.status === 503 && tries > 1) {
    const seconds = Number(answer.headers.get("Retry-After")) || 1;
    await new Promise((resolve) => setTimeout(resolve, 1000 * Math.min(seconds, LONGEST_WAIT)));
    return ask(path, { params, body, tries: tries - 1 });
  }
  throw Object.assign(new Error(await sentence(answer)), { status: answer.status });
}

export async function askJson(path, options) {
  return (await ask(path, options)).json();
}

async function sentence(answer) {
  try {
    const said = await answer.json();
    if (typeof said.error === "string") return said.error;
  } catch { /* no JSON: the status must do */ }
  return `The server answered ${answer.status}.`;
}

// All requests that are refused at once wait for one dialog.
function askForToken(wrong) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("ask-token");
    const field = document.getElementById("token");
    if (wrong) document.getElementById("token-note").textContent = "The server does not know that token; try again.";
    field.value = "";
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => {
      token = field.value.trim();
      sessionStorage.setItem(KEY, token);
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}
