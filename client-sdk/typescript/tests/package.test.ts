// Tests of the published parts: the packed package, the programs of the README, the example.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { clientOf, sharedBroker, startServer } from "./fixtures.js";
import { HOME, nodeProgram, Program } from "./processes.js";

/** Definitions of the names that the programs of the README use without defining them. */
const DEFINITIONS = `
const rows = ["a", "b"];
const url = process.argv[2] ?? "";
async function write(row: string, how: { fencingToken: number; signal: AbortSignal }): Promise<void> {
  how.signal.throwIfAborted();
  console.log(row, how.fencingToken);
}
export { rows, url, write };
`;

test("the programs of the README compile and run", async (t) => {
  const { url } = await sharedBroker();
  const shop = await startServer(
    t,
    createServer((_, response) => response.end("42")),
  );
  const text = readFileSync(join(HOME, "README.md"), "utf8");
  const programs = [...text.matchAll(/^```ts\n(.*?)^```$/gms)].map(([, code = ""]) => code);
  assert.equal(programs.length, 3);
  // The folder is inside the package, so that imports of the package's own name resolve.
  const dir = mkdtempSync(join(HOME, "build", "readme-"));
  t.after(() => {
    rmSync(dir, { recursive: true });
  });
  const names = programs.map((code, number) => {
    const name = `program${String(number)}`;
    writeFileSync(join(dir, `${name}.ts`), DEFINITIONS + code.replace("http://127.0.0.1:7070", url));
    return name;
  });
  const options = { noUnusedLocals: false, incremental: false };
  const config = { extends: join(HOME, "tsconfig.base.json"), compilerOptions: options, include: ["*.ts"] };
  writeFileSync(join(dir, "tsconfig.json"), JSON.stringify(config));
  execFileSync(process.execPath, [join(HOME, "node_modules/typescript/bin/tsc"), "-p", dir], { stdio: "inherit" });
  for (const name of names) {
    const program = new Program([process.execPath, join(dir, `${name}.js`), shop]);
    assert.equal(await program.waitForExit(), 0, name);
  }
  assert.equal(await clientOf(t, url).get("orders/42"), null, "the lock was not released");
});

test("the example runs", async (t) => {
  const program = nodeProgram(t, "examples/nightly.js", (await sharedBroker()).url);
  await program.waitForLine(/^done: 3 orders$/);
  assert.equal(await program.waitForExit(), 0);
});

test("the packed package is complete and works", async (t) => {
  const dir = mkdtempSync(join(tmpdir(), "leasehold-package-"));
  t.after(() => {
    rmSync(dir, { recursive: true });
  });
  const npm = ["pack", "--json", "--pack-destination", dir];
  const output = execFileSync("npm", npm, { cwd: HOME, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
  const packed = Object.values(
    JSON.parse(output) as Record<string, { filename: string; files: { path: string }[] }>,
  )[0];
  const files = packed?.files.map((file) => file.path) ?? [];
  for (const needed of [
    "LICENSE",
    "README.md",
    "dist/index.js",
    "dist/index.d.ts",
    "dist/testing/index.js",
    "dist/v1.js",
  ]) {
    assert(files.includes(needed), needed);
  }
  assert.deepEqual(
    files.filter((file) => !/^(dist\/.*\.(js|d\.ts)|README\.md|LICENSE|package\.json)$/.test(file)),
    [],
  );
  const home = join(dir, "node_modules/@leasehold/client");
  mkdirSync(home, { recursive: true });
  execFileSync("tar", ["-xf", join(dir, packed?.filename ?? ""), "-C", home, "--strip-components=1"]);
  for (const dependency of ["@grpc", "@bufbuild", "@js-sdsl"]) {
    symlinkSync(join(HOME, "node_modules", dependency), join(dir, "node_modules", dependency));
  }
  const code = `
    import { Client } from "@leasehold/client";
    await using client = new Client(process.argv[2]);
    await using lease = await client.acquire("packed");
    console.log("held", lease.isValid());
  `;
  const source = code.replaceAll("await using", "const");
  writeFileSync(join(dir, "program.mjs"), source);
  const program = new Program([process.execPath, join(dir, "program.mjs"), (await sharedBroker()).url]);
  assert.equal(await program.waitForLine(/^held/), "held true");
  assert.equal(await program.waitForExit(), 0);
});
