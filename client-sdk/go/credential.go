// The credential of a client, and its refresh on a stream, which can thereby outlive its first credential.

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

// credentialCheckInterval is the interval at which a stream checks for another token.
const credentialCheckInterval = time.Second

// credentialSource is the origin of the bearer token: a constant, or a file that is read each time. It must not be
// logged.
type credentialSource struct {
	token string
	file  string
}

// authorization returns the value of the authorization header, or an empty string without a credential.
func (s credentialSource) authorization() (string, error) {
	token := s.token
	if s.file != "" {
		content, err := os.ReadFile(s.file)
		if err != nil {
			return "", newError(ErrInvalidCredential, fmt.Sprintf("the credential cannot be read: %s", err))
		}
		token = strings.TrimSpace(string(content))
	}
	if token == "" && s.file == "" {
		return "", nil
	}
	for i := range len(token) {
		if token[i] < ' ' || token[i] > '~' {
			return "", newError(ErrInvalidCredential, "")
		}
	}
	return "Bearer " + token, nil
}

// withCredential returns a context whose calls present the credential.
func withCredential(ctx context.Context, credential string) context.Context {
	if credential == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", credential)
}

// refreshCredential sends a refresh to the broker when the credential has changed.
func (s *session) refreshCredential(now time.Duration) {
	c := s.connection
	if c == nil || c.refreshingCredential != "" || now < c.credentialCheckedAt+credentialCheckInterval {
		return
	}
	c.credentialCheckedAt = now
	current, err := s.runtime.endpoints.credentials.authorization()
	if err != nil || current == c.credential {
		// An unreadable file may be about to be replaced.
		return
	}
	c.refreshingCredential = current
	callID := c.nextCallID()
	refresh := &pb.RefreshCredential{CallId: callID, Authorization: current}
	c.sendCall(callID, callSubject{kind: callCredential}, &pb.HoldRequest{
		Message: &pb.HoldRequest_RefreshCredential{RefreshCredential: refresh},
	})
}

// isCredentialCurrent returns true if the credential of the stream is the current one. If not, the broker's response to
// the old credential says nothing about the current one.
func (c *streamConnection) isCredentialCurrent() bool {
	current, err := c.endpoints.credentials.authorization()
	return err == nil && current == c.credential
}

// onCredentialAccepted records the credential that the broker accepted for the stream.
func (c *streamConnection) onCredentialAccepted() {
	c.credential, c.refreshingCredential = c.refreshingCredential, ""
}

// onCredentialRejected logs the rejection. The credential is sent again at the next check, because the broker may
// receive its key or its rules later.
func (s *session) onCredentialRejected(reason string) {
	s.connection.refreshingCredential = ""
	s.runtime.log().Warn("a broker rejected the new credential", "why", reason)
}
