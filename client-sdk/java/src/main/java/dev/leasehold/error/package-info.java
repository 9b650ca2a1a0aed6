/** Everything that can go wrong, one class for each reason that a caller may treat differently. */
package dev.leasehold.error;
