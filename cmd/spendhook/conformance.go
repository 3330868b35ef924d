package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"spendhook/clients/conformance"
	"spendhook/internal/terminal"
)

type conformanceCmd struct {
	Database string   `default:"{}" placeholder:"VALUE" help:"Variable DATABASE of the program, in which {} stands for a file; none: the program keeps nothing, and is not killed."`
	Command  []string `arg:"" passthrough:"" help:"Program and its arguments. It is killed and started again, so it must not be a script that starts the program in turn."`
}

// Run starts the program, tests it, and prints the result of each case. It fails if a case failed.
func (c *conformanceCmd) Run(ctx context.Context, term *stdio) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	if c.Command[0] == "--" {
		c.Command = c.Command[1:]
	}
	if len(c.Command) == 0 {
		return usageError("give the command of the program after --")
	}
	cases, failed := 0, 0
	err := conformance.Run(ctx, conformance.Options{
		Command: c.Command, Database: c.Database, Errors: term.Err, Now: time.Now,
	}, func(r conformance.Result) {
		cases++
		outcome, reason := "ok", ""
		switch {
		case r.Skipped():
			outcome = "left out"
		case r.Err != nil:
			failed++
			outcome, reason = "FAILED", "\n"+terminal.Escape(r.Err.Error(), "")
		}
		fmt.Fprintf(term.Out, "%-8s  %6.1fs  %s%s\n", outcome, r.Took.Seconds(), r.Name, reason)
	})
	if err == nil && failed > 0 {
		err = fmt.Errorf("%d of %d cases failed", failed, cases)
	}
	return err
}
