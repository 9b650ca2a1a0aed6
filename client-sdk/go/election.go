// One leader for a job, and everybody else who wants to know who that is.

package leasehold

import (
	"context"
	"errors"
	"iter"
	"time"
)

// lookEvery is how often an observer looks.
const lookEvery = time.Second

// Election is that of one leader for a job: whoever holds the lock of its name. The others wait for it in line.
type Election struct {
	client  *Client
	job     string
	options []Option
}

// Elect is the election of one leader for a job. The options are those of its campaigns.
func (c *Client) Elect(job string, options ...Option) *Election {
	return &Election{c, job, options}
}

// Campaign waits until this process leads, however long that takes. It leads as long as the lease is valid.
func (e *Election) Campaign(ctx context.Context) (*Lease, error) {
	options := append([]Option{WithWait(Forever)}, e.options...)
	return e.client.Lock(ctx, e.job, options...)
}

// Observe watches who leads, without being a candidate: the leader now, then the next one whenever that changes, and
// nil while nobody leads. It ends with ctx, or after an error.
//
// It looks about once a second, and again while no broker answers: a change is heard of late, and two quick ones
// perhaps as one. Never act on it as if it were a lock.
func (e *Election) Observe(ctx context.Context) iter.Seq2[*Holder, error] {
	return func(yield func(*Holder, error) bool) {
		told, hasTold := "", false
		for ctx.Err() == nil {
			leader, err := e.leader(ctx)
			switch {
			case ctx.Err() != nil:
				return
			case errors.Is(err, ErrUnavailable) || errors.Is(err, ErrStoreRecovering):
			case err != nil:
				yield(nil, err)
				return
			case !hasTold || told != leader.LeaseID:
				told, hasTold = leader.LeaseID, true
				if !yield(leaderOrNobody(leader), nil) {
					return
				}
			}
			if pause(ctx, lookEvery*3/4, lookEvery/2) != nil {
				return
			}
		}
	}
}

func (e *Election) leader(ctx context.Context) (Holder, error) {
	state, err := e.client.Get(ctx, e.job, e.options...)
	if err != nil || len(state.Holders) == 0 {
		return Holder{}, err
	}
	return state.Holders[0], nil
}

func leaderOrNobody(leader Holder) *Holder {
	if leader.LeaseID == "" {
		return nil
	}
	return &leader
}
