package dev.leasehold.probe;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import dev.leasehold.Closure;
import dev.leasehold.Holder;
import dev.leasehold.Lease;
import dev.leasehold.LeaseholdClient;
import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import dev.leasehold.PermitUsage;
import dev.leasehold.QueuePosition;
import dev.leasehold.Target;
import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.LeaseholdException;
import dev.leasehold.internal.Clock;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.concurrent.CancellationException;

/** Output of the probe to the runner: one JSON object a line. */
final class Output {
    private static final PrintStream OUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private static final Gson GSON = new GsonBuilder().serializeNulls().create();

    private Output() {}

    /** Returns the time in milliseconds on the clock that all processes of a machine share, as the client reads it. */
    static double now() {
        return Clock.now() / 1e6;
    }

    static boolean has(JsonObject object, String name) {
        return object.has(name) && !object.get(name).isJsonNull();
    }

    private static void writeLine(JsonObject line) {
        byte[] text = (GSON.toJson(line) + "\n").getBytes(StandardCharsets.UTF_8);
        OUT.write(text, 0, text.length);
        OUT.flush();
    }

    private static JsonObject event(String name, double at) {
        JsonObject event = new JsonObject();
        event.addProperty("event", name);
        event.addProperty("at_ms", at);
        return event;
    }

    static void ready() {
        writeLine(event("ready", now()));
    }

    static void connectFailed(LeaseholdException error) {
        JsonObject failed = event("failed", now());
        failed.add("error", errorJson(error));
        writeLine(failed);
    }

    static void queued(JsonObject command, QueuePosition position) {
        JsonObject queued = event("queued", now());
        queued.add("call", command.get("id"));
        queued.addProperty("position", position.position());
        queued.addProperty("queue_length", position.queueLength());
        queued.add("holders", holders(position.holders()));
        queued.add("closure", closure(position.closure()));
        writeLine(queued);
    }

    static void lost(String lease, Loss loss) {
        JsonObject lost = event("lost", now());
        lost.addProperty("lease", lease);
        lost.addProperty("reason", reason(loss.reason()));
        writeLine(lost);
    }

    static void respond(JsonObject command, JsonElement result) {
        respond(command, now(), result);
    }

    static void respond(JsonObject command, double at, JsonElement result) {
        JsonObject response = new JsonObject();
        response.add("id", command.get("id"));
        response.addProperty("at_ms", at);
        response.add("ok", result);
        writeLine(response);
    }

    static void fail(JsonObject command, Throwable error) {
        JsonObject response = new JsonObject();
        response.add("id", command.get("id"));
        response.addProperty("at_ms", now());
        if (error instanceof LeaseholdException) {
            response.add("error", errorJson((LeaseholdException) error));
        } else if (error instanceof CancellationException) {
            JsonObject cancelled = new JsonObject();
            cancelled.addProperty("class", "Cancelled");
            cancelled.addProperty("message", "cancelled");
            response.add("error", cancelled);
        } else {
            FaultHandler.exit(error);
        }
        writeLine(response);
    }

    static JsonObject version() {
        JsonObject version = new JsonObject();
        version.addProperty("language", "java");
        version.addProperty("version", LeaseholdClient.class.getPackage().getImplementationVersion());
        return version;
    }

    static JsonObject lease(Lease lease, List<Target> targets) {
        boolean isValid = lease.isValid();
        JsonObject state = new JsonObject();
        state.addProperty("lease_id", lease.leaseId());
        JsonArray tokens = new JsonArray();
        targets.forEach(target -> tokens.add(lease.fencingToken(target).orElseThrow()));
        state.add("tokens", tokens);
        state.addProperty("valid", isValid);
        state.addProperty("remaining_ms", lease.remaining().toNanos() / 1e6);
        state.addProperty(
                "lost_reason", lease.loss().map(loss -> reason(loss.reason())).orElse(null));
        return state;
    }

    /** Converts an error to JSON, with its class name in the spelling that all languages use. */
    private static JsonObject errorJson(LeaseholdException error) {
        JsonObject json = new JsonObject();
        json.addProperty("class", error.getClass().getSimpleName().replace("Exception", ""));
        json.addProperty("message", error.getMessage());
        json.add("holders", holders(error.holders()));
        json.add("retry_after_ms", JsonNull.INSTANCE);
        error.retryAfter().ifPresent(retryAfter -> json.addProperty("retry_after_ms", retryAfter.toNanos() / 1e6));
        if (error instanceof LeaseLostException) {
            json.addProperty("reason", reason(((LeaseLostException) error).reason()));
        }
        return json;
    }

    /** Converts a reason to the common spelling: STORE_LOST becomes StoreLost. */
    private static String reason(LostReason reason) {
        StringBuilder name = new StringBuilder();
        for (String word : reason.name().split("_")) {
            name.append(word.charAt(0)).append(word.substring(1).toLowerCase(Locale.ROOT));
        }
        return name.toString();
    }

    static JsonElement closure(Optional<Closure> closure) {
        return closure.<JsonElement>map(Output::closure).orElse(JsonNull.INSTANCE);
    }

    private static JsonObject closure(Closure closure) {
        JsonObject json = new JsonObject();
        json.addProperty("cause", closure.cause().name().toLowerCase(Locale.ROOT));
        json.addProperty("owner", closure.owner());
        json.addProperty("reason", closure.reason());
        json.addProperty("remaining_ms", closure.remaining().toNanos() / 1e6);
        return json;
    }

    static JsonObject permitUsage(PermitUsage usage) {
        JsonObject json = new JsonObject();
        json.addProperty("limit", usage.limit());
        json.addProperty("used", usage.used());
        json.addProperty("is_limit_set", usage.isLimitSet());
        return json;
    }

    private static JsonArray holders(List<Holder> holders) {
        JsonArray json = new JsonArray();
        holders.forEach(holder -> json.add(holder(holder)));
        return json;
    }

    static JsonObject holder(Holder holder) {
        JsonObject json = new JsonObject();
        json.addProperty("lease_id", holder.leaseId());
        json.addProperty("owner", holder.owner());
        json.addProperty("reason", holder.reason());
        json.addProperty("token", holder.fencingToken());
        json.addProperty("remaining_ms", holder.remaining().toNanos() / 1e6);
        return json;
    }
}
