// Controls a real browser for the tests. Each input line is a JSON string with the body of an async function of
// `browser`, `open`, `page` and `problems`. Each output line is `{"ok": result}` or `{"error": text}`.
// Arguments: the folder of playwright-core, and the path of the browser.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [folder, executablePath] = process.argv.slice(2);
const { chromium } = createRequire(`${folder}/`)("playwright-core");
// Resolves the host names that tests use to this machine.
const browser = await chromium.launch({ executablePath, args: ["--host-resolver-rules=MAP *.example 127.0.0.1"] });
const Body = (async () => {}).constructor;

let page = null;
// Forbidden events of a page: errors, violations of its content security policy, requests to other hosts.
let problems = [];

const open = async (options = {}) => {
  await page?.context().close();
  problems = [];
  const context = await browser.newContext(options);
  context.setDefaultTimeout(15_000);
  page = await context.newPage();
  await page.exposeFunction("violated", (what) => problems.push(`violation: ${what}`));
  await page.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => {
      window.violated(`${event.violatedDirective} ${event.blockedURI}`);
    });
  });
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) problems.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => problems.push(`error: ${error}`));
  page.on("request", (request) => {
    const first = options.baseURL;
    if (first && !request.url().startsWith(first)) problems.push(`request: ${request.url()}`);
  });
  return page;
};

console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    const body = new Body("browser", "open", "page", "problems", JSON.parse(line));
    answer = { ok: (await body(browser, open, page, problems)) ?? null };
  } catch (error) {
    answer = { error: String(error) };
  }
  console.log(JSON.stringify(answer));
}
await browser.close();
