// The stubs of the API, for what the client has no call for.

export * from "./gen/leasehold/v1/admin_service.js";
export * from "./gen/leasehold/v1/inspection_service.js";
export * from "./gen/leasehold/v1/lock_service.js";
export * from "./gen/leasehold/v1/types.js";
