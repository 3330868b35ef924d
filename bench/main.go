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
	Smoke   smokeCmd   `cmd:"" help:"Run most scenarios for a short time and check that no event is lost. There are no time limits."`
	Cost    costCmd    `cmd:"" help:"Measure for a minute what a delivery costs, and compare it with docs/benchmarks.json."`
	Compare compareCmd `cmd:"" help:"Compare the JSON files of two runs and print which figures changed beyond the noise."`
	Publish publishCmd `cmd:"" help:"Write the figures of a run into docs/benchmarks.json and the tables of docs/benchmarks.md."`
	Worker  workerCmd  `cmd:"" hidden:"" help:"The processes that the other commands start."`
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
		kong.Description("Measure the daemon against what the machine can do."),
		kong.Writers(term.out, term.err),
		kong.Exit(func(code int) { exited = code }),
		kong.Vars{"scenarios": scenarioNames(), "shapes": floodNames()},
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(&term),
	)
	command, err := parser.Parse(args)
	if exited >= 0 { // --help has printed its text
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
