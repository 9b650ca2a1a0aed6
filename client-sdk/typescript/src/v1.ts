// Generated stubs of the API, for requests that the client does not offer.

export * from "./gen/leasehold/v1/admin_service.js";
export * from "./gen/leasehold/v1/inspection_service.js";
export * from "./gen/leasehold/v1/lock_service.js";
export * from "./gen/leasehold/v1/types.js";
