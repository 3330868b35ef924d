package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// cleanups are the steps of a shutdown. Each step is added where its resource is opened; run
// runs them in reverse order.
type cleanups []func(context.Context) error

func (c *cleanups) add(name string, undo func(context.Context) error) {
	*c = append(*c, func(ctx context.Context) error {
		if err := undo(ctx); err != nil {
			return fmt.Errorf("stop %s: %w", name, err)
		}
		return nil
	})
}

// addFunc adds a step that does not fail.
func (c *cleanups) addFunc(undo func(context.Context)) {
	*c = append(*c, func(ctx context.Context) error {
		undo(ctx)
		return nil
	})
}

// run runs all steps, also after a failure, and joins the errors. The steps share the deadline
// of ctx.
func (c *cleanups) run(ctx context.Context) (err error) {
	for _, step := range slices.Backward(*c) {
		err = errors.Join(err, step(ctx))
	}
	*c = nil
	return err
}
