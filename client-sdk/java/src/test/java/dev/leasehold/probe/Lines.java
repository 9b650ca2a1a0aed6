package dev.leasehold.probe;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import dev.leasehold.Holder;
import dev.leasehold.Lease;
import dev.leasehold.LeaseholdClient;
import dev.leasehold.Loss;
import dev.leasehold.LostReason;
import dev.leasehold.QueuePlace;
import dev.leasehold.Target;
import dev.leasehold.error.LeaseLostException;
import dev.leasehold.error.LeaseholdException;
import dev.leasehold.internal.Clock;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CancellationException;

/** What the probe says to the runner. */
final class Lines {
    private static final PrintStream OUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private static final Gson GSON = new GsonBuilder().serializeNulls().create();

    private Lines() {}

    /** On the clock that all processes of a machine share, as the client reads it. */
    static double now() {
        return Clock.now() / 1e6;
    }

    static boolean has(JsonObject object, String name) {
        return object.has(name) && !object.get(name).isJsonNull();
    }

    private static void say(JsonObject line) {
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
        say(event("ready", now()));
    }

    static void failed(LeaseholdException error) {
        JsonObject failed = event("failed", now());
        failed.add("error", failure(error));
        say(failed);
    }

    static void queued(JsonObject command, QueuePlace place) {
        JsonObject queued = event("queued", now());
        queued.add("call", command.get("id"));
        queued.addProperty("position", place.position());
        queued.addProperty("queue_length", place.queueLength());
        queued.add("holders", holders(place.holders()));
        say(queued);
    }

    static void lost(String lease, Loss loss) {
        JsonObject lost = event("lost", now());
        lost.addProperty("lease", lease);
        lost.addProperty("reason", reason(loss.reason()));
        say(lost);
    }

    static void answer(JsonObject command, JsonElement ok) {
        answer(command, now(), ok);
    }

    static void answer(JsonObject command, double at, JsonElement ok) {
        JsonObject answer = new JsonObject();
        answer.add("id", command.get("id"));
        answer.addProperty("at_ms", at);
        answer.add("ok", ok);
        say(answer);
    }

    static void fail(JsonObject command, Throwable error) {
        JsonObject answer = new JsonObject();
        answer.add("id", command.get("id"));
        answer.addProperty("at_ms", now());
        if (error instanceof LeaseholdException) {
            answer.add("error", failure((LeaseholdException) error));
        } else if (error instanceof CancellationException) {
            JsonObject cancelled = new JsonObject();
            cancelled.addProperty("class", "Cancelled");
            cancelled.addProperty("message", "cancelled");
            answer.add("error", cancelled);
        } else {
            Faults.end(error);
        }
        say(answer);
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

    /** An error in the common spelling, which is that of the classes. */
    private static JsonObject failure(LeaseholdException error) {
        JsonObject failure = new JsonObject();
        failure.addProperty("class", error.getClass().getSimpleName().replace("Exception", ""));
        failure.addProperty("message", error.getMessage());
        failure.add("holders", holders(error.holders()));
        failure.add("retry_after_ms", JsonNull.INSTANCE);
        error.retryAfter().ifPresent(after -> failure.addProperty("retry_after_ms", after.toNanos() / 1e6));
        if (error instanceof LeaseLostException) {
            failure.addProperty("reason", reason(((LeaseLostException) error).reason()));
        }
        return failure;
    }

    /** STORE_LOST is StoreLost. */
    private static String reason(LostReason reason) {
        StringBuilder name = new StringBuilder();
        for (String word : reason.name().split("_")) {
            name.append(word.charAt(0)).append(word.substring(1).toLowerCase(java.util.Locale.ROOT));
        }
        return name.toString();
    }

    private static JsonArray holders(List<Holder> all) {
        JsonArray holders = new JsonArray();
        all.forEach(one -> holders.add(holder(one)));
        return holders;
    }

    static JsonObject holder(Holder one) {
        JsonObject holder = new JsonObject();
        holder.addProperty("lease_id", one.leaseId());
        holder.addProperty("owner", one.owner());
        holder.addProperty("reason", one.reason());
        holder.addProperty("token", one.fencingToken());
        holder.addProperty("remaining_ms", one.remaining().toNanos() / 1e6);
        return holder;
    }
}
