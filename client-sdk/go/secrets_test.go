// Secrets are absent from logs, errors and printed values of the client.

package leasehold_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"leasehold.dev/sdk"
)

// canary is a bearer token. Output that contains it reveals a secret.
const canary = "canary-5b1f0c8e"

type safeBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *safeBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(text)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestNoSecretIsPrinted(t *testing.T) {
	t.Parallel()
	broker, output := startTestBroker(t), &safeBuffer{}
	handler := slog.NewTextHandler(output, &slog.HandlerOptions{Level: slog.LevelDebug})
	client := clientOf(t, broker.URL(), leasehold.WithOwner("one"),
		leasehold.WithBearerToken(canary), leasehold.WithLogger(slog.New(handler)))
	lease := lock(t, client, "a")
	inner := lock(t, client, "a", leasehold.WithUnder(lease))
	secrets := append(leasehold.SecretsOf(lease), leasehold.SecretsOf(inner)...)
	secrets = append(secrets, canary)
	_, held := client.TryLock(t.Context(), "a")
	assertErr(t, held, leasehold.ErrHeld)
	printAll := func() {
		for _, value := range []any{lease, client, *client, lease.Context(), held} {
			fmt.Fprintf(output, "%v %+v %#v\n", value, value, value)
			asJSON, err := json.Marshal(value)
			ok(t, err)
			fmt.Fprintln(output, string(asJSON))
		}
		slog.New(handler).Info("values", "lease", lease, "client", client, "err", lease.Check())
		slog.New(slog.NewJSONHandler(output, nil)).Info("values", "lease", lease, "client", client)
	}
	printAll()
	broker.Lose("a")
	fmt.Fprintln(output, inner.Release(t.Context()))
	printAll()
	text := output.String()
	assert(t, strings.Contains(text, lease.ID()) && strings.Contains(text, "lock lost"), "%s", text)
	for _, secret := range secrets {
		assert(t, len(secret) > 8 && !strings.Contains(text, secret), "the output contains %s: %s", secret, text)
	}
}
