// What is shown to brokers, and how a stream gets on with the next one: it must not outlive its credential.

package leasehold

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
)

// credentialEvery is how often a stream looks for another token.
const credentialEvery = time.Second

// source is where the bearer token comes from: always the same, or whatever is in a file now. It is in no log.
type source struct {
	token string
	file  string
}

// now is the header's value; empty if nothing is shown.
func (s source) now() (string, error) {
	token := s.token
	if s.file != "" {
		read, err := os.ReadFile(s.file)
		if err != nil {
			return "", failed(ErrInvalidCredential, fmt.Sprintf("the credential cannot be read: %s", err))
		}
		token = strings.TrimSpace(string(read))
	}
	if token == "" && s.file == "" {
		return "", nil
	}
	for i := range len(token) {
		if token[i] < ' ' || token[i] > '~' {
			return "", failed(ErrInvalidCredential, "")
		}
	}
	return "Bearer " + token, nil
}

// shown is a context whose calls show the credential.
func shown(ctx context.Context, credential string) context.Context {
	if credential == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", credential)
}

// watchCredential shows the broker another credential as soon as there is one.
func (k *keeper) watchCredential(now time.Duration) {
	l := k.link
	if l == nil || l.showing != "" || now < l.lookedAt+credentialEvery {
		return
	}
	l.lookedAt = now
	newest, err := k.core.brokers.source.now()
	if err != nil || newest == l.credential {
		// A file that cannot be read may be about to be replaced.
		return
	}
	l.showing = newest
	callID := l.next()
	refresh := &pb.RefreshCredential{CallId: callID, Authorization: newest}
	l.call(callID, about{kind: kindCredential}, &pb.HoldRequest{
		Message: &pb.HoldRequest_RefreshCredential{RefreshCredential: refresh},
	})
}

// showsNewest is false if the credential was replaced: what a broker says to it says nothing of the next one.
func (l *link) showsNewest() bool {
	newest, err := l.brokers.source.now()
	return err == nil && newest == l.credential
}

// credentialAccepted: the stream goes on with it.
func (l *link) credentialAccepted() {
	l.credential, l.showing = l.showing, ""
}

// credentialRefused: the broker may hear of its key, or of it, in a moment. It is shown again.
func (k *keeper) credentialRefused(why string) {
	k.link.showing = ""
	k.core.log().Warn("a broker does not accept another credential", "why", why)
}
