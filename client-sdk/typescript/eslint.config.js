// Rules of the linter: the strict rules with type information, and those of the project's style.

import js from "@eslint/js";
import { defineConfig } from "eslint/config";
import tseslint from "typescript-eslint";

export default defineConfig(
  { ignores: ["dist", "**/build", "src/gen"] },
  js.configs.recommended,
  tseslint.configs.strictTypeChecked,
  tseslint.configs.stylisticTypeChecked,
  {
    languageOptions: {
      parserOptions: {
        projectService: { allowDefaultProject: ["eslint.config.js"] },
        tsconfigRootDir: import.meta.dirname,
      },
    },
    rules: {
      "max-lines": ["error", 400],
      "max-lines-per-function": ["error", { max: 70 }],
      "max-params": ["error", 5],
      "@typescript-eslint/consistent-type-imports": "error",
      // An async function without an await still returns a promise to its caller.
      "@typescript-eslint/require-await": "off",
    },
  },
  {
    files: ["tests/**"],
    // The runner of node:test awaits the promises of tests, and a suite of tests is not one long function.
    rules: { "@typescript-eslint/no-floating-promises": "off", "max-lines-per-function": "off" },
  },
);
