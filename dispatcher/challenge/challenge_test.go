package challenge

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/webhook"
)

// aborted is a Send that a receiver never answers.
func aborted(ctx context.Context, _ webhook.Request) attempt.Result {
	<-ctx.Done()
	return attempt.Result{Class: attempt.ClassAborted, Err: ctx.Err()}
}

// A receiver that takes longer than a challenge may take has failed it. A caller that leaves before says nothing about it.
func TestASlowReceiverFailsTheChallenge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &Challenger{opts: Options{Send: aborted}}
		began := time.Now()
		if _, reason, err := c.send(t.Context(), webhook.Request{}); reason != "timeout" || err != nil || time.Since(began) != maxDuration {
			t.Errorf("after %s: %q, %v", time.Since(began), reason, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, reason, err := c.send(ctx, webhook.Request{}); reason != "" || err == nil {
			t.Errorf("the caller left: %q, %v", reason, err)
		}
	})
}
