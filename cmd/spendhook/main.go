// Command spendhook runs the webhook delivery daemon and the tools beside it:
// minting tokens, emitting events, receiving, signing and replaying deliveries,
// importing spend data.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"spendhook/internal/invalid"
)

// Exit codes. Scripts rely on them.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line and returns the process's exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return runWith(ctx, args, console{in: os.Stdin, out: stdout, err: stderr})
}

// commands is the whole command line, one field per subcommand.
type commands struct {
	Serve       serveCmd       `cmd:"" help:"Run the daemon."`
	Token       tokenCmd       `cmd:"" help:"Mint an access token with the daemon's own key."`
	Client      oauthClientCmd `cmd:"" help:"Manage the OAuth clients that get access tokens."`
	Emit        emitCmd        `cmd:"" help:"Send one event from flags, or many as NDJSON."`
	Listen      listenCmd      `cmd:"" help:"Receive deliveries, verify them and print them."`
	Replay      replayCmd      `cmd:"" help:"Deliver again: an event, a delivery, or all a subscriber missed."`
	Sign        signCmd        `cmd:"" help:"Sign the body on standard input."`
	Verify      verifyCmd      `cmd:"" help:"Verify the body on standard input against a signature."`
	Import      importCmd      `cmd:"" help:"Load spend data: companies, users, cards, locations, reimbursements, statements."`
	DemoData    demoDataCmd    `cmd:"" help:"Write invented spend data for import."`
	Migrate     migrateCmd     `cmd:"" help:"Bring the schema of the spend database up to date."`
	Certs       certsCmd       `cmd:"" help:"Make certificates for trying mutual TLS out."`
	Keys        keysCmd        `cmd:"" help:"Look after the keys that sign access tokens, and encrypt what is stored."`
	Format      formatCmd      `cmd:"" help:"Show or raise the format that work is stored in."`
	Audit       auditCmd       `cmd:"" help:"Export who changed what."`
	Config      configCmd      `cmd:"" help:"Check or print the configuration."`
	Doctor      doctorCmd      `cmd:"" help:"Say what is wrong with settings, Redis, database, certificates and work, and what to do."`
	Healthcheck healthcheckCmd `cmd:"" help:"Ask a running daemon whether it is ready."`
	Version     versionCmd     `cmd:"" help:"Print the version."`
}

// console is what a command reads and writes.
type console struct {
	in       io.Reader
	out, err io.Writer
}

// usageError is a mistake on the command line that flags alone cannot express.
type usageError string

func (e usageError) Error() string { return string(e) }

func runWith(ctx context.Context, args []string, term console) int {
	exited := -1
	parser := kong.Must(&commands{},
		kong.Name("spendhook"),
		kong.Description("Events in, signed webhooks out."),
		kong.Writers(term.out, term.err),
		kong.Exit(func(code int) { exited = code }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.UsageOnError(),
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
	return report(term.err, err)
}

// report prints an error as one line, or each problem of the settings as one,
// and maps it to an exit code.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	if problems, ok := errors.AsType[*invalid.Error](err); ok {
		for _, p := range problems.Fields {
			fmt.Fprintf(stderr, "spendhook: %s: %s\n", p.Field, p.Message)
		}
		return exitFailure
	}
	fmt.Fprintf(stderr, "spendhook: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	_, badFlags := errors.AsType[*kong.ParseError](err)
	_, badUsage := errors.AsType[usageError](err)
	if badFlags || badUsage {
		return exitUsage
	}
	return exitFailure
}
