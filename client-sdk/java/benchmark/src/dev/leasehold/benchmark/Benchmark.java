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

/** Measures the client beside Redisson's locks on the same Redis, in turns, and prints the medians. */
public final class Benchmark {
    private static final int[] CALLERS = {1, 64};
    private static final Duration TTL = Duration.ofSeconds(10);
    private static final Duration PATIENCE = Duration.ofSeconds(60);

    private Benchmark() {}

    /** Starts a Redis and a broker on it, measures, and ends them. */
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
            List<Contender> all = List.of(
                    new Contender("leasehold", name -> ours(client, name)),
                    new Contender("Redisson RLock", name -> theirs(redisson.getLock(name))),
                    new Contender("Redisson RFairLock", name -> theirs(redisson.getFairLock(name + "/fair"))));
            measure(all, rounds, seconds);
            redisson.shutdown();
        }
        System.exit(0);
    }

    private static double argument(String[] arguments, String name, double standard) {
        int at = List.of(arguments).indexOf(name);
        return at < 0 ? standard : Double.parseDouble(arguments[at + 1]);
    }

    private static Contender.Pair ours(LeaseholdClient client, String name) {
        LockRequest lock = client.lock(name).ttl(TTL).waitUpTo(PATIENCE);
        return work -> {
            try (Lease lease = lock.acquire()) {
                work.run();
                lease.check();
            }
        };
    }

    private static Contender.Pair theirs(RLock lock) {
        return work -> {
            if (!lock.tryLock(PATIENCE.toSeconds(), TTL.toSeconds(), TimeUnit.SECONDS)) {
                throw new IllegalStateException("not within " + PATIENCE);
            }
            try {
                work.run();
            } finally {
                lock.unlock();
            }
        };
    }

    private static void measure(List<Contender> all, int rounds, double seconds) throws Exception {
        for (boolean isHot : new boolean[] {false, true}) {
            for (int callers : CALLERS) {
                Map<String, List<Visits>> found = new LinkedHashMap<>();
                // The first is not counted: the runtime compiles what is used often.
                for (Contender one : all) {
                    one.round(callers, seconds, isHot);
                }
                for (int round = 0; round < rounds; round++) {
                    for (Contender one : all) {
                        Visits visits = one.round(callers, seconds, isHot);
                        found.computeIfAbsent(one.name(), name -> new ArrayList<>())
                                .add(visits);
                    }
                }
                print(found, callers, isHot);
            }
        }
    }

    private static void print(Map<String, List<Visits>> found, int callers, boolean isHot) {
        System.out.printf("%n%d callers, %s%n%n", callers, isHot ? "one lock for all" : "a lock for each");
        List<String> heads = new ArrayList<>(List.of("", "pairs/s"));
        if (isHot) {
            heads.addAll(List.of("hand-offs/s", "longest wait", "Jain's index"));
        }
        System.out.println("| " + String.join(" | ", heads) + " |\n|" + "---|".repeat(heads.size()));
        found.forEach((name, rounds) -> {
            List<String> cells = new ArrayList<>(List.of(name, shown("%,.0f", rounds, Visits::pairsPerSecond)));
            if (isHot) {
                cells.add(shown("%,.0f", rounds, Visits::handOffsPerSecond));
                cells.add(shown("%,.0f ms", rounds, Visits::longestWaitMillis));
                cells.add(shown("%.3f", rounds, Visits::fairness));
            }
            System.out.println("| " + String.join(" | ", cells) + " |");
        });
    }

    private static String shown(String form, List<Visits> rounds, ToDoubleFunction<Visits> of) {
        double[] sorted = rounds.stream().mapToDouble(of).sorted().toArray();
        double median = (sorted[(sorted.length - 1) / 2] + sorted[sorted.length / 2]) / 2;
        return String.format(Locale.ROOT, form, median);
    }
}
