package dev.leasehold.probe;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import dev.leasehold.Holder;
import dev.leasehold.Lease;
import dev.leasehold.LeaseholdClient;
import dev.leasehold.LockRequest;
import dev.leasehold.LockState;
import dev.leasehold.Target;
import dev.leasehold.Tls;
import dev.leasehold.error.ConnectionException;
import dev.leasehold.error.LeaseholdException;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BiFunction;

/**
 * Driver that runs the scenarios of the suite with the Java client: it reads one JSON command a line, and writes one
 * JSON line for each response and each event. The protocol is in tests/suite/README.md. The driver uses the
 * asynchronous calls, so that any number of calls can be pending; the blocking calls share their implementation.
 */
public final class Probe {
    private static final Map<String, BiFunction<LockRequest, Duration, LockRequest>> DURATION_SETTINGS = Map.of(
            "ttl_ms", LockRequest::ttl,
            "wait_ms", LockRequest::waitUpTo,
            "max_hold_ms", LockRequest::maxHold,
            "lock_delay_ms", LockRequest::lockDelay,
            "disconnect_grace_ms", LockRequest::disconnectGrace,
            "at_least_ms", LockRequest::atLeast);

    /** A lease and its targets, stored by a name that the runner chose. */
    private record NamedLease(Lease lease, List<Target> targets) {
        JsonObject state() {
            return Output.lease(lease, targets);
        }
    }

    private final LeaseholdClient client;
    private final Map<String, NamedLease> leases = new ConcurrentHashMap<>();
    private final Map<Long, CompletableFuture<?>> pendingCalls = new ConcurrentHashMap<>();

    private Probe(LeaseholdClient client) {
        this.client = client;
    }

    /** Connects, and runs commands until the end of stdin. */
    public static void main(String[] arguments) throws Exception {
        FaultHandler.install(System.getenv("LEASEHOLD_LOG"));
        LeaseholdClient client;
        try {
            client = connect();
        } catch (ConnectionException e) {
            Output.connectFailed(e);
            System.exit(1);
            return;
        }
        Output.ready();
        // The client is not closed here: the exit hook of the client releases all leases.
        new Probe(client).run();
    }

    private static LeaseholdClient connect() throws IOException, InterruptedException {
        Tls tls = Tls.DEFAULT;
        if (System.getenv("LEASEHOLD_TLS_CA") != null) {
            tls = tls.ca(file("LEASEHOLD_TLS_CA"));
        }
        if (System.getenv("LEASEHOLD_TLS_CERT") != null) {
            tls = tls.certificate(file("LEASEHOLD_TLS_CERT"), file("LEASEHOLD_TLS_KEY"));
        }
        String tokenFile = System.getenv("LEASEHOLD_BEARER_TOKEN_FILE");
        return LeaseholdClient.builder(System.getenv().getOrDefault("LEASEHOLD_ENDPOINTS", ""))
                .owner(System.getenv("LEASEHOLD_OWNER"))
                .bearerToken(System.getenv("LEASEHOLD_BEARER_TOKEN"))
                .bearerTokenFile(tokenFile == null ? null : Path.of(tokenFile))
                .allowInsecureToken(System.getenv("LEASEHOLD_ALLOW_INSECURE_TOKEN") != null)
                .tls(tls)
                .releaseAtExit(true)
                .connect();
    }

    private static byte[] file(String variable) throws IOException {
        return Files.readAllBytes(Path.of(System.getenv(variable)));
    }

    private void run() throws IOException, InterruptedException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            execute(JsonParser.parseString(line).getAsJsonObject());
        }
    }

    private void execute(JsonObject command) throws InterruptedException {
        switch (command.get("do").getAsString()) {
            case "version" -> Output.respond(command, Output.version());
            case "acquire" -> acquire(command);
            case "try_acquire" -> tryAcquire(command);
            case "cancel" -> cancel(command);
            case "release" -> release(command);
            case "state" -> state(command);
            case "observe" -> inThread(command, () -> observe(command));
            case "set_limit" -> inThread(command, () -> setLimit(command));
            case "block" -> {
                // Blocks the thread of the program's own code.
                Thread.sleep(command.get("ms").getAsLong());
                Output.respond(command, new JsonObject());
            }
            case "shutdown" ->
                inThread(command, () -> {
                    client.close();
                    return new JsonObject();
                });
            // Ends without releases and exit hooks.
            case "exit" -> Runtime.getRuntime().halt(0);
            default -> throw new IllegalArgumentException("no such command: " + command);
        }
    }

    private void acquire(JsonObject command) {
        try {
            CompletableFuture<Lease> call = createRequest(command).acquireAsync();
            register(command, call);
            respondWhenDone(command, call, lease -> store(command, lease));
        } catch (LeaseholdException e) {
            Output.fail(command, e);
        }
    }

    private void tryAcquire(JsonObject command) {
        CompletableFuture<Optional<Lease>> call = createRequest(command).tryAcquireAsync();
        register(command, call);
        respondWhenDone(
                command,
                call,
                lease -> lease.map(granted -> store(command, granted)).orElse(null));
    }

    private void register(JsonObject command, CompletableFuture<?> call) {
        long id = command.get("id").getAsLong();
        pendingCalls.put(id, call);
        call.whenComplete((result, error) -> pendingCalls.remove(id));
    }

    private static <T> void respondWhenDone(
            JsonObject command, CompletableFuture<T> call, java.util.function.Function<T, JsonElement> toJson) {
        call.whenComplete((result, error) -> {
            if (error == null) {
                Output.respond(command, toJson.apply(result));
            } else {
                Output.fail(command, error);
            }
        });
    }

    private void cancel(JsonObject command) {
        // The call may have completed already.
        CompletableFuture<?> call = pendingCalls.get(command.get("call").getAsLong());
        if (call != null) {
            call.cancel(true);
        }
        Output.respond(command, new JsonObject());
    }

    private void release(JsonObject command) {
        NamedLease namedLease = leases.get(command.get("lease").getAsString());
        respondWhenDone(command, namedLease.lease.releaseAsync(), nothing -> new JsonObject());
    }

    private void state(JsonObject command) {
        double at = Output.now();
        Output.respond(
                command, at, leases.get(command.get("lease").getAsString()).state());
    }

    private JsonObject observe(JsonObject command) throws InterruptedException {
        String job = command.get("lock").getAsString();
        Optional<Holder> leader = client.election(job).observe().next();
        Optional<LockState> state = client.get(job);
        JsonObject response = new JsonObject();
        response.add("holder", leader.map(Output::holder).orElse(null));
        response.add("closure", Output.closure(state.flatMap(LockState::closure)));
        response.add(
                "permit_usage",
                state.flatMap(LockState::permitUsage).map(Output::permitUsage).orElse(null));
        return response;
    }

    private JsonObject setLimit(JsonObject command) throws InterruptedException {
        String lock = command.get("lock").getAsString();
        int limit = Output.has(command, "limit") ? command.get("limit").getAsInt() : 0;
        OptionalInt previous = limit == 0 ? client.removeLimit(lock) : client.setLimit(lock, limit);
        JsonObject response = new JsonObject();
        response.addProperty("previous_limit", previous.isPresent() ? previous.getAsInt() : null);
        return response;
    }

    private static void inThread(JsonObject command, Callable<JsonObject> action) {
        Thread thread = new Thread(() -> {
            try {
                Output.respond(command, action.call());
            } catch (LeaseholdException e) {
                Output.fail(command, e);
            } catch (Exception e) {
                FaultHandler.exit(e);
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private LockRequest createRequest(JsonObject command) {
        List<Target> targets = targets(command);
        LockRequest request = targets.size() == 1 ? client.lock(targets.get(0)) : client.lockAll(targets);
        for (Map.Entry<String, BiFunction<LockRequest, Duration, LockRequest>> setting : DURATION_SETTINGS.entrySet()) {
            if (Output.has(command, setting.getKey())) {
                Duration value = Duration.ofMillis(command.get(setting.getKey()).getAsLong());
                request = setting.getValue().apply(request, value);
            }
        }
        if (Output.has(command, "reason")) {
            request = request.reason(command.get("reason").getAsString());
        }
        if (Output.has(command, "under")) {
            request = request.under(leases.get(command.get("under").getAsString()).lease);
        }
        return request.onQueue(position -> Output.queued(command, position));
    }

    private static List<Target> targets(JsonObject command) {
        List<Target> targets = new ArrayList<>();
        for (JsonElement element : command.getAsJsonArray("targets")) {
            targets.add(target(element.getAsJsonObject()));
        }
        return targets;
    }

    private static Target target(JsonObject json) {
        Target target = Target.of(json.get("name").getAsString());
        if (Output.has(json, "namespace")) {
            target = target.namespace(json.get("namespace").getAsString());
        }
        return switch (Output.has(json, "mode") ? json.get("mode").getAsString() : "") {
            case "shared" -> target.shared();
            case "semaphore" ->
                target.permits(
                        json.get("permits").getAsInt(),
                        Output.has(json, "limit") ? json.get("limit").getAsInt() : 0);
            default -> target;
        };
    }

    private JsonObject store(JsonObject command, Lease lease) {
        NamedLease namedLease = new NamedLease(lease, targets(command));
        String name = command.get("as").getAsString();
        leases.put(name, namedLease);
        lease.onLost(loss -> Output.lost(name, loss));
        return namedLease.state();
    }
}
