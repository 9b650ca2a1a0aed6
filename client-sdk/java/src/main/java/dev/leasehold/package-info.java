/**
 * The client of Leasehold, a lock broker. A lock is held by a lease, which the client renews and which reports when it
 * is lost. Begin with {@link dev.leasehold.LeaseholdClient}.
 */
package dev.leasehold;
