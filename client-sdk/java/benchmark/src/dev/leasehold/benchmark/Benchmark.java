package dev.leasehold.benchmark;

import dev.leasehold.Lease;
import dev.leasehold.LeaseholdClient;
import dev.leasehold.LockRequest;
import dev.leasehold.support.Broker;
import dev.leasehold.support.Redis;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.ToDoubleFunction;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Benchmark of the client beside Redisson's locks on the same Redis. Alternates between the libraries, and prints
 * medians.
 */
public final class Benchmark {
    private static final int[] CALLERS = {1, 64};
    private static final Duration TTL = Duration.ofSeconds(10);
    private static final Duration WAIT_TIMEOUT = Duration.ofSeconds(60);

    private Benchmark() {}

    /** Starts a Redis and a broker on it, runs all measurements, and stops both. */
    public static void main(String[] arguments) throws Exception {
        int rounds = (int) argument(arguments, "--rounds", 5);
        double seconds = argument(arguments, "--seconds", 3);
        System.out.printf(
                "%s, %d cores, Java %s%n",
                System.getProperty("os.arch"), Runtime.getRuntime().availableProcessors(), Runtime.version());
        try (Redis redis = new Redis();
                Broker broker = Broker.start(redis);
                LeaseholdClient client = LeaseholdClient.connect(broker.url())) {
            Config config = new Config();
            config.useSingleServer().setAddress("redis://127.0.0.1:" + redis.port());
            RedissonClient redisson = Redisson.create(config);
            List<Contender> contenders = List.of(
                    new Contender("leasehold", name -> leaseholdLock(client, name)),
                    new Contender("Redisson RLock", name -> redissonLock(redisson.getLock(name))),
                    new Contender("Redisson RFairLock", name -> redissonLock(redisson.getFairLock(name + "/fair"))));
            measure(contenders, rounds, seconds);
            redisson.shutdown();
        }
        System.exit(0);
    }

    private static double argument(String[] arguments, String name, double defaultValue) {
        int index = List.of(arguments).indexOf(name);
        return index < 0 ? defaultValue : Double.parseDouble(arguments[index + 1]);
    }

    private static Contender.BenchmarkLock leaseholdLock(LeaseholdClient client, String name) {
        LockRequest lock = client.lock(name).ttl(TTL).waitUpTo(WAIT_TIMEOUT);
        return work -> {
            try (Lease lease = lock.acquire()) {
                work.run();
                lease.check();
            }
        };
    }

    private static Contender.BenchmarkLock redissonLock(RLock lock) {
        return work -> {
            if (!lock.tryLock(WAIT_TIMEOUT.toSeconds(), TTL.toSeconds(), TimeUnit.SECONDS)) {
                throw new IllegalStateException("not acquired within " + WAIT_TIMEOUT);
            }
            try {
                work.run();
            } finally {
                lock.unlock();
            }
        };
    }

    private static void measure(List<Contender> contenders, int rounds, double seconds) throws Exception {
        for (boolean isShared : new boolean[] {false, true}) {
            for (int callers : CALLERS) {
                Map<String, List<RoundResult>> results = new LinkedHashMap<>();
                // The first round is a warm-up: the runtime compiles frequently used code.
                for (Contender contender : contenders) {
                    contender.runRound(callers, seconds, isShared);
                }
                for (int round = 0; round < rounds; round++) {
                    for (Contender contender : contenders) {
                        RoundResult roundResult = contender.runRound(callers, seconds, isShared);
                        results.computeIfAbsent(contender.name(), name -> new ArrayList<>())
                                .add(roundResult);
                    }
                }
                print(results, callers, isShared);
            }
        }
    }

    private static void print(Map<String, List<RoundResult>> results, int callers, boolean isShared) {
        System.out.printf("%n%d callers, %s%n%n", callers, isShared ? "one lock for all" : "a lock for each");
        List<String> headings = new ArrayList<>(List.of("", "pairs/s"));
        if (isShared) {
            headings.addAll(List.of("hand-offs/s", "longest wait", "Jain's index"));
        }
        System.out.println("| " + String.join(" | ", headings) + " |\n|" + "---|".repeat(headings.size()));
        results.forEach((name, rounds) -> {
            List<String> cells =
                    new ArrayList<>(List.of(name, formatMedian("%,.0f", rounds, RoundResult::pairsPerSecond)));
            if (isShared) {
                cells.add(formatMedian("%,.0f", rounds, RoundResult::handOffsPerSecond));
                cells.add(formatMedian("%,.0f ms", rounds, RoundResult::longestWaitMillis));
                cells.add(formatMedian("%.3f", rounds, RoundResult::fairness));
            }
            System.out.println("| " + String.join(" | ", cells) + " |");
        });
    }

    private static String formatMedian(String format, List<RoundResult> rounds, ToDoubleFunction<RoundResult> value) {
        double[] sorted = rounds.stream().mapToDouble(value).sorted().toArray();
        double median = (sorted[(sorted.length - 1) / 2] + sorted[sorted.length / 2]) / 2;
        return String.format(Locale.ROOT, format, median);
    }
}
