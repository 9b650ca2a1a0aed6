package dev.leasehold.benchmark;

import java.util.stream.LongStream;

/** What the callers of one round have done. */
final class Visits {
    private final double seconds;
    private final long[] pairs;
    private long longestWaitNanos;
    private long handOffs;
    private int lastHolder = -1;

    Visits(int callers, double seconds) {
        this.seconds = seconds;
        pairs = new long[callers];
    }

    /** A caller has the lock that all want. Called by whoever has it. */
    void entered(int caller, long waitedNanos) {
        longestWaitNanos = Math.max(longestWaitNanos, waitedNanos);
        if (caller != lastHolder) {
            handOffs++;
            lastHolder = caller;
        }
    }

    void paired(int caller) {
        pairs[caller]++;
    }

    double pairsPerSecond() {
        return LongStream.of(pairs).sum() / seconds;
    }

    double handOffsPerSecond() {
        return handOffs / seconds;
    }

    double longestWaitMillis() {
        return longestWaitNanos / 1e6;
    }

    /** Jain's index: 1 if all had it as often, 1 / callers if one had it always. */
    double fairness() {
        double sum = LongStream.of(pairs).sum();
        double squares = LongStream.of(pairs)
                .mapToDouble(count -> (double) count * count)
                .sum();
        return squares == 0 ? 0 : sum * sum / (pairs.length * squares);
    }
}
