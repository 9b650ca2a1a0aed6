/** Exceptions of the client, one class for each reason that a caller may handle differently. */
package dev.leasehold.error;
