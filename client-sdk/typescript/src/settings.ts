// What a client is made of, checked.

import { readFileSync } from "node:fs";
import { hostname } from "node:os";

import {
  InsecureTokenError,
  InvalidCredentialError,
  InvalidEndpointError,
  InvalidOwnerError,
  NoEndpointError,
} from "./errors.js";
import type { Brokers, Endpoint } from "./order.js";

/** How https endpoints are trusted, and a certificate of this client's own, all in PEM. */
export interface TlsOptions {
  /** Who signed the brokers' certificates. Unset: the root certificates that Node trusts. */
  ca?: string | Uint8Array | undefined;
  /** This client's certificate, where brokers ask for one. */
  cert?: string | Uint8Array | undefined;
  /** The key of `cert`. */
  key?: string | Uint8Array | undefined;
  /** The name in the brokers' certificates, if it is not the endpoint's. */
  serverName?: string | undefined;
}

/** What a client takes besides its endpoints. */
export interface ClientOptions {
  /** The name of this process, shown to people who find a lock held; 1-256 bytes. Default: host name and process id. */
  owner?: string | undefined;
  /** Shown to the brokers. */
  bearerToken?: string | undefined;
  /**
   * A file with the token instead, which is looked at every second: when it has another token, that is shown to the
   * brokers, so that locks outlive the token that they were taken with.
   */
  bearerTokenFile?: string | undefined;
  /**
   * Lets the token go unencrypted to endpoints that are not https and not of this machine (127.0.0.0/8, `::1` and
   * `localhost`), where the network itself is trusted. Without it such an endpoint is refused. Default: false.
   */
  allowInsecureToken?: boolean | undefined;
  /** How https endpoints are trusted. */
  tls?: TlsOptions | undefined;
  /** Gives everything back when the process ends, within 2 s. Default: true. */
  releaseAtExit?: boolean | undefined;
  /** Hears what should not be, for people. Default: `process.emitWarning`. */
  warn?: ((message: string) => void) | undefined;
}

const PORTS: Partial<Record<string, number>> = { "http:": 80, "https:": 443 };

/** Where the brokers are. URLs are separated by commas, or stand in a list. */
export function brokersOf(endpoints: string | readonly string[], options: ClientOptions): Brokers {
  const urls = typeof endpoints === "string" ? endpoints.split(",") : endpoints;
  const parsed = urls.map((url) => url.trim()).filter((url) => url !== "");
  if (parsed.length === 0) {
    throw new NoEndpointError();
  }
  const { ca, cert, key, serverName } = options.tls ?? {};
  const read = parsed.map(endpointOf);
  const credential = credentialOf(options);
  const hasToken = (credential.bearerToken ?? credential.bearerTokenFile) !== undefined;
  const exposed = read.find(isExposed);
  if (hasToken && exposed !== undefined && options.allowInsecureToken !== true) {
    throw new InsecureTokenError(exposed.name);
  }
  return {
    endpoints: read,
    tls: { ca: text(ca), cert: text(cert), key: text(key), serverName },
    ...credential,
  };
}

/** The name of this process. */
export function ownerOf(options: ClientOptions): string {
  const owner = options.owner ?? `${hostname()}:${String(process.pid)}`;
  const length = typeof owner === "string" ? Buffer.byteLength(owner) : 0;
  if (length < 1 || length > 256) {
    throw new InvalidOwnerError();
  }
  return owner;
}

function credentialOf(options: ClientOptions): Pick<Brokers, "bearerToken" | "bearerTokenFile"> {
  const { bearerToken, bearerTokenFile } = options;
  let token = bearerToken;
  if (bearerTokenFile !== undefined) {
    if (bearerToken !== undefined) {
      throw new InvalidCredentialError("give a token or the file of one, not both");
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
    throw new InvalidEndpointError(name, "is no URL");
  }
  const port = PORTS[url.protocol];
  if (port === undefined) {
    throw new InvalidEndpointError(name, "is no http or https URL");
  }
  const address = `${url.hostname}:${url.port === "" ? String(port) : url.port}`;
  return { name, address, isTls: url.protocol === "https:" };
}

/** Whether what is sent there crosses a network unencrypted. */
function isExposed({ name, isTls }: Endpoint): boolean {
  // The URL has lower case, and addresses in one spelling.
  const { hostname } = new URL(name);
  const isLoopback = hostname === "localhost" || hostname === "[::1]" || /^127(\.\d+){3}$/.test(hostname);
  return !isTls && !isLoopback;
}

function text(pem: string | Uint8Array | undefined): string | undefined {
  return typeof pem === "string" || pem === undefined ? pem : Buffer.from(pem).toString();
}
