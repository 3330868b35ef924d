package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
)

// cleanups are the steps of a shutdown. Each step is added where its resource is opened; run
// runs them in reverse order.
type cleanups struct {
	log  *slog.Logger
	list []cleanup
}

type cleanup struct {
	what string
	undo func(context.Context) error
}

func (c *cleanups) add(what string, undo func(context.Context) error) {
	c.list = append(c.list, cleanup{what, undo})
}

// call adds a step that does not fail.
func (c *cleanups) call(what string, undo func(context.Context)) {
	c.add(what, func(ctx context.Context) error {
		undo(ctx)
		return nil
	})
}

// run runs all steps, also after a failure, and joins the errors. The steps share the deadline
// of ctx.
func (c *cleanups) run(ctx context.Context) error {
	var failed []error
	for _, step := range slices.Backward(c.list) {
		c.log.Debug("stopping", "step", step.what)
		if err := step.undo(ctx); err != nil {
			failed = append(failed, fmt.Errorf("stop %s: %w", step.what, err))
		}
	}
	c.list = nil
	return errors.Join(failed...)
}
