// No secret is in anything that the client logs, says or shows.

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

// canary is a bearer token. What logs it or shows it gives it away.
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

func TestNoSecretIsShown(t *testing.T) {
	t.Parallel()
	broker, shown := startFake(t), &safeBuffer{}
	handler := slog.NewTextHandler(shown, &slog.HandlerOptions{Level: slog.LevelDebug})
	client := clientOf(t, broker.URL(), leasehold.WithOwner("one"),
		leasehold.WithBearerToken(canary), leasehold.WithLogger(slog.New(handler)))
	lease := lock(t, client, "a")
	inner := lock(t, client, "a", leasehold.WithUnder(lease))
	secrets := append(leasehold.SecretsOf(lease), leasehold.SecretsOf(inner)...)
	secrets = append(secrets, canary)
	_, held := client.TryLock(t.Context(), "a")
	fails(t, held, leasehold.ErrHeld)
	isLegible := func() {
		for _, one := range []any{lease, client, *client, lease.Context(), held} {
			fmt.Fprintf(shown, "%v %+v %#v\n", one, one, one)
			asJSON, err := json.Marshal(one)
			ok(t, err)
			fmt.Fprintln(shown, string(asJSON))
		}
		slog.New(handler).Info("shown", "lease", lease, "client", client, "err", lease.Check())
		slog.New(slog.NewJSONHandler(shown, nil)).Info("shown", "lease", lease, "client", client)
	}
	isLegible()
	broker.Lose("a")
	fmt.Fprintln(shown, inner.Release(t.Context()))
	isLegible()
	output := shown.String()
	is(t, strings.Contains(output, lease.ID()) && strings.Contains(output, "lock lost"), "%s", output)
	for _, secret := range secrets {
		is(t, len(secret) > 8 && !strings.Contains(output, secret), "%s is shown: %s", secret, output)
	}
}
