// Command bench measures the daemon against what the machine can do: it starts
// a Redis, the daemon, a receiver and a load generator as separate processes on
// loopback, and compares with a plain loop of POSTs to the same receiver.
// docs/benchmarks.md describes the measurements.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

type commands struct {
	Run     runCmd     `cmd:"" help:"Measure, print a table, write JSON."`
	Smoke   smokeCmd   `cmd:"" help:"Run every path shortly and check that nothing is lost; judges no time."`
	Compare compareCmd `cmd:"" help:"Say what changed between two JSON files beyond the noise."`
	Worker  workerCmd  `cmd:"" hidden:"" help:"The processes that run starts."`
}

type workerCmd struct {
	Receiver receiverCmd `cmd:""`
	Load     loadCmd     `cmd:""`
	Ask      askCmd      `cmd:""`
	Guess    guessCmd    `cmd:""`
	Hostile  hostileCmd  `cmd:""`
}

// console has the standard streams of a command.
type console struct {
	in       io.Reader
	out, err io.Writer
}

func main() {
	os.Exit(run(context.Background(), os.Args[1:], console{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, term console) int {
	ctx, restore := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer restore()
	exited := -1
	parser := kong.Must(&commands{},
		kong.Name("bench"),
		kong.Description("How fast, against what the machine can do."),
		kong.Writers(term.out, term.err),
		kong.Exit(func(code int) { exited = code }),
		kong.Vars{"scenarios": scenarioNames(), "shapes": tenantNames()},
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(&term),
	)
	command, err := parser.Parse(args)
	if exited >= 0 { // --help has printed what was asked for
		return exited
	}
	if err == nil {
		err = command.Run()
	}
	if err != nil {
		fmt.Fprintln(term.err, "bench:", err)
		return 1
	}
	return 0
}
