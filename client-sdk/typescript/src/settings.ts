// Settings of a client, and their checks.

import { readFileSync } from "node:fs";
import { hostname } from "node:os";

import {
  InsecureTokenError,
  InvalidCredentialError,
  InvalidEndpointError,
  InvalidOwnerError,
  NoEndpointError,
} from "./errors.js";
import type { ConnectionSettings, Endpoint } from "./messages.js";

/** Trusted certificates of https endpoints and an optional client certificate, all in PEM. */
export interface TlsOptions {
  /** Root certificates for the brokers' certificates. Unset: the root certificates that Node trusts. */
  ca?: string | Uint8Array | undefined;
  /** Client certificate, if the brokers require one. */
  cert?: string | Uint8Array | undefined;
  /** Private key of `cert`. */
  key?: string | Uint8Array | undefined;
  /** Name in the brokers' certificates, if it differs from that of the endpoint. */
  serverName?: string | undefined;
}

/** Options of a client. */
export interface ClientOptions {
  /**
   * Name of this process, which operators and other callers see as the owner of a held lock; 1-256 bytes. Default: host
   * name and process id.
   */
  owner?: string | undefined;
  /** Bearer token that is sent to the brokers. Printable ASCII only. */
  bearerToken?: string | undefined;
  /**
   * File that contains the bearer token, in place of `bearerToken`. The file is read every second, and a changed token
   * is sent to the brokers, so that locks outlive the token with which they were acquired.
   */
  bearerTokenFile?: string | undefined;
  /**
   * True to allow sending the token unencrypted to endpoints that are neither https nor on this machine (127.0.0.0/8,
   * `::1` and `localhost`). Use it only if the network itself is trusted. Without it these endpoints are rejected with
   * InsecureTokenError. Default: false.
   */
  allowInsecureToken?: boolean | undefined;
  /** TLS settings of https endpoints. */
  tls?: TlsOptions | undefined;
  /** True to release all leases when the process exits, within 2 s. Default: true. */
  releaseAtExit?: boolean | undefined;
  /** Called with warnings, as text for people. Default: `process.emitWarning`. */
  warn?: ((message: string) => void) | undefined;
}

const PORTS: Partial<Record<string, number>> = { "http:": 80, "https:": 443 };

/** Returns the endpoints and credentials. URLs are separated by commas, or elements of a list. */
export function connectionSettingsOf(
  endpoints: string | readonly string[],
  options: ClientOptions,
): ConnectionSettings {
  const items = typeof endpoints === "string" ? endpoints.split(",") : endpoints;
  const urls = items.map((url) => url.trim()).filter((url) => url !== "");
  if (urls.length === 0) {
    throw new NoEndpointError();
  }
  const { ca, cert, key, serverName } = options.tls ?? {};
  const parsedEndpoints = urls.map(endpointOf);
  const credential = credentialOf(options);
  const hasToken = (credential.bearerToken ?? credential.bearerTokenFile) !== undefined;
  const exposed = parsedEndpoints.find(isExposed);
  if (hasToken && exposed !== undefined && options.allowInsecureToken !== true) {
    throw new InsecureTokenError(exposed.name);
  }
  return {
    endpoints: parsedEndpoints,
    tls: { ca: pemText(ca), cert: pemText(cert), key: pemText(key), serverName },
    ...credential,
  };
}

/** Returns the name of this process. Throws InvalidOwnerError if it is empty or longer than 256 bytes. */
export function ownerOf(options: ClientOptions): string {
  const owner = options.owner ?? `${hostname()}:${String(process.pid)}`;
  const length = typeof owner === "string" ? Buffer.byteLength(owner) : 0;
  if (length < 1 || length > 256) {
    throw new InvalidOwnerError();
  }
  return owner;
}

function credentialOf(options: ClientOptions): Pick<ConnectionSettings, "bearerToken" | "bearerTokenFile"> {
  const { bearerToken, bearerTokenFile } = options;
  let token = bearerToken;
  if (bearerTokenFile !== undefined) {
    if (bearerToken !== undefined) {
      throw new InvalidCredentialError("bearerToken and bearerTokenFile are both set; set one of them");
    }
    try {
      token = readFileSync(bearerTokenFile, "utf8").trim();
    } catch (error) {
      throw new InvalidCredentialError((error as Error).message);
    }
  }
  if (token !== undefined && !/^[ -~]*$/.test(token)) {
    throw new InvalidCredentialError();
  }
  return { bearerToken, bearerTokenFile };
}

function endpointOf(name: string): Endpoint {
  let url: URL;
  try {
    url = new URL(name);
  } catch {
    throw new InvalidEndpointError(name, "not a URL");
  }
  const port = PORTS[url.protocol];
  if (port === undefined) {
    throw new InvalidEndpointError(name, "not an http or https URL");
  }
  const address = `${url.hostname}:${url.port === "" ? String(port) : url.port}`;
  return { name, address, isTls: url.protocol === "https:" };
}

/** Returns true if requests to the endpoint cross a network unencrypted. */
function isExposed({ name, isTls }: Endpoint): boolean {
  // `URL` has normalized the host name to lower case, and addresses to one spelling.
  const { hostname } = new URL(name);
  const isLoopback = hostname === "localhost" || hostname === "[::1]" || /^127(\.\d+){3}$/.test(hostname);
  return !isTls && !isLoopback;
}

function pemText(pem: string | Uint8Array | undefined): string | undefined {
  return typeof pem === "string" || pem === undefined ? pem : Buffer.from(pem).toString();
}
