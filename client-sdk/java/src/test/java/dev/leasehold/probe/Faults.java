package dev.leasehold.probe;

import java.util.logging.ConsoleHandler;
import java.util.logging.Handler;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;

/** Ends the probe when something goes wrong that must not, and shows what is logged. */
final class Faults {
    /** Kept, as loggers are collected. */
    private static final Logger CLIENT = Logger.getLogger("dev.leasehold");

    private Faults() {}

    static void watch(String level) {
        Thread.setDefaultUncaughtExceptionHandler((thread, fault) -> end(fault));
        Logger root = Logger.getLogger("");
        for (Handler handler : root.getHandlers()) {
            root.removeHandler(handler);
        }
        if (level != null) {
            ConsoleHandler console = new ConsoleHandler();
            console.setLevel(Level.ALL);
            root.addHandler(console);
            root.setLevel("trace".equals(level) ? Level.ALL : Level.INFO);
            CLIENT.setLevel("trace".equals(level) ? null : Level.FINE);
        }
        // The client logs its own faults as errors, and goes on.
        CLIENT.addHandler(new Ending());
    }

    static void end(Throwable fault) {
        fault.printStackTrace();
        Runtime.getRuntime().halt(101);
    }

    private static final class Ending extends Handler {
        @Override
        public void publish(LogRecord line) {
            if (line.getLevel().intValue() >= Level.SEVERE.intValue()) {
                end(line.getThrown() == null ? new IllegalStateException(line.getMessage()) : line.getThrown());
            }
        }

        @Override
        public void flush() {}

        @Override
        public void close() {}
    }
}
