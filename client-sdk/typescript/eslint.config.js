// The rules of the linter: the strict ones that know the types, and those of the project's style.

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
      // What is awaited is a promise to its caller, whatever it is inside.
      "@typescript-eslint/require-await": "off",
    },
  },
  {
    files: ["tests/**"],
    // A test of node:test is a promise that its runner awaits, and a suite of tests is no long function.
    rules: { "@typescript-eslint/no-floating-promises": "off", "max-lines-per-function": "off" },
  },
);
