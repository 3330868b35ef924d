// Command spendhook runs the webhook delivery daemon. Its other commands call the API of a daemon,
// manage the daemon's keys and data, and help to test a receiver.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	mangokong "github.com/alecthomas/mango-kong"
	kongcompletion "github.com/jotaen/kong-completion"

	"spendhook/cmd/spendhook/remote"
	"spendhook/internal/invalid"
	"spendhook/internal/redisx"
	"spendhook/internal/terminal"
)

// Exit codes. Scripts rely on them; every help text lists them.
const (
	exitOK          = 0
	exitFailure     = int(remote.Failed)
	exitUsage       = 2
	exitNotAllowed  = int(remote.NotAllowed)
	exitNotFound    = int(remote.NotFound)
	exitUnavailable = int(remote.Unavailable)
)

const exitCodes = "Exit codes: 0 done, 1 failed, 2 wrong usage or not logged in, 3 not allowed, 4 not found, 5 the daemon is unreachable or busy"

func main() {
	redisx.LogTo(slog.New(slog.DiscardHandler)) // a command reports the error itself; the daemon sets its own log
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line and returns the process's exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return runWith(ctx, args, stdio{In: os.Stdin, Out: stdout, Err: stderr})
}

// commands is the whole command line, one field per subcommand.
type commands struct {
	remote.Commands `group:"api"`

	Console consoleCmd `cmd:"" group:"api" help:"Print a link into the web console." example:"spendhook console --open"`

	Serve       serveCmd       `cmd:"" group:"machine" help:"Run the daemon." example:"spendhook serve --config /etc/spendhook/spendhook.yml"`
	Init        initCmd        `cmd:"" group:"machine" help:"Create certificates, an encryption key and an OAuth client for a first deployment on PostgreSQL. Existing ones are kept." example:"spendhook init --dir init --host hooks.example.com"`
	Config      configCmd      `cmd:"" group:"machine" help:"Check the configuration."`
	Doctor      doctorCmd      `cmd:"" group:"machine" help:"Check settings, Redis, database, certificates and queues, and print a remedy for each problem." example:"spendhook doctor --json"`
	Healthcheck healthcheckCmd `cmd:"" group:"machine" help:"Check that a running daemon is ready." example:"spendhook healthcheck"`
	Token       tokenCmd       `cmd:"" group:"machine" help:"Mint an access token with the daemon's own key." example:"spendhook token --scope 'events:write deliveries:read' --company 6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11 --ttl 24h"`
	Client      clientCmd      `cmd:"" group:"machine" help:"Create an OAuth client in the daemon's database, such as the first one (oauth-client manages clients over the API)."`
	Keys        keysCmd        `cmd:"" group:"machine" help:"Manage the keys that sign access tokens and the keys that encrypt stored secrets."`
	Migrate     migrateCmd     `cmd:"" group:"machine" help:"Migrate the schema of the spend database to this version." example:"spendhook migrate"`
	Format      formatCmd      `cmd:"" group:"machine" help:"Show or raise the version of the stored format." example:"spendhook format raise --dry-run"`
	Import      importCmd      `cmd:"" group:"machine" help:"Import spend data: companies, users, cards, locations, reimbursements, statements." example:"spendhook import companies.ndjson cards.ndjson"`

	Listen      listenCmd      `cmd:"" group:"tools" help:"Run a receiver that verifies deliveries and prints them, or forward a feed to a local one." example:"spendhook listen --subscribe --events PAYMENT_PAID"`
	Relay       relayCmd       `cmd:"" group:"tools" help:"Carry records of Kafka, RabbitMQ or a PostgreSQL table to a daemon, as events."`
	Sign        signCmd        `cmd:"" group:"tools" help:"Sign the body on standard input." example:"spendhook sign --secret-file secret.txt --id evt_1 < body.json"`
	Verify      verifyCmd      `cmd:"" group:"tools" help:"Verify the body on standard input against a signature." example:"spendhook verify --secret-file secret.txt --id evt_1 --timestamp 1795201200 --signature 'v1,…' < body.json"`
	Conformance conformanceCmd `cmd:"" group:"tools" help:"Test whether a receiver and emitter of your own does what the libraries do." example:"spendhook conformance -- ./conformance"`
	Certs       certsCmd       `cmd:"" group:"tools" help:"Create certificates for a trial of mutual TLS."`
	DemoData    demoDataCmd    `cmd:"" group:"tools" help:"Write example spend data for the import command." example:"spendhook demo-data > demo.ndjson"`
	Completion  completionCmd  `cmd:"" group:"tools" help:"Print the completion script for a shell." example:"spendhook completion bash"`
	Version     versionCmd     `cmd:"" group:"tools" help:"Print the version." example:"spendhook version"`
	Help        helpCmd        `cmd:"" group:"tools" help:"Explain a command." example:"spendhook help event send"`

	Man         mangokong.ManFlag `hidden:"" help:"Print the manual page."`
	ShowVersion kong.VersionFlag  `name:"version" help:"Print the version."`
}

type completionCmd = kongcompletion.Completion

// groups of commands, in the order of the help.
var groups = []kong.Group{
	{Key: "api", Title: "Commands that call the API of a running daemon, on this machine or another:"},
	{Key: "machine", Title: "Commands that run on the daemon's machine and use its settings and its database:"},
	{Key: "tools", Title: "Tools:"},
}

// helpCmd lists "spendhook help" in the help. runWith replaces the command by the flag --help.
type helpCmd struct {
	Command []string `arg:"" optional:"" help:"The command, such as event send."`
}

// stdio holds the standard streams of a command.
type stdio = remote.Terminal

// usageError is a mistake on the command line that the parser cannot detect.
type usageError = remote.UsageError

func runWith(ctx context.Context, args []string, term stdio) int {
	term.Version = readBuild().Version
	exited := -1
	parser := kong.Must(&commands{},
		kong.Name("spendhook"),
		// The manual page shows only the first line.
		kong.Description("Deliver events as signed webhooks\n\nThe daemon accepts events and delivers each to its subscribers as signed HTTP requests: spendhook serve. The other commands call the API of a daemon, manage its keys and data, or help to test a receiver."),
		kong.Writers(term.Out, term.Err),
		kong.Exit(func(code int) { exited = code }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, FlagsLast: true}),
		kong.Help(help),
		kong.Vars{"version": readBuild().String()},
		kong.ExplicitGroups(groups),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(&term),
	)
	kongcompletion.Register(parser, kongcompletion.WithPredictors(remote.Predictors(term.Version))) //nolint:contextcheck // completion runs outside of any command
	if exited >= 0 {                                                                                // the completions are printed
		return exited
	}
	if len(args) > 0 && args[0] == "help" {
		args = append(slices.Clone(args[1:]), "--help")
	}
	command, err := parser.Parse(args)
	if exited >= 0 { // --help, --man or --version has printed its text
		return exited
	}
	if err == nil {
		err = command.Run()
	}
	return report(term.Err, err)
}

// help prints kong's help of a command, an example, and the exit codes.
func help(options kong.HelpOptions, ctx *kong.Context) error {
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
		return err
	}
	if node := ctx.Selected(); node != nil && node.Tag.Get("example") != "" {
		fmt.Fprintf(ctx.Stdout, "\nExample:\n  %s\n", node.Tag.Get("example"))
	}
	_, err := fmt.Fprintf(ctx.Stdout, "\n%s.\n", exitCodes)
	return err
}

// report prints an error and returns its exit code. Each invalid setting is one line, any other
// error is one line.
func report(stderr io.Writer, err error) int {
	if err == nil || remote.Done(err) {
		return exitOK
	}
	if problems, ok := errors.AsType[*invalid.Error](err); ok {
		for _, p := range problems.Fields {
			fmt.Fprintf(stderr, "spendhook: %s: %s\n", p.Field, p.Message)
		}
		return exitFailure
	}
	fmt.Fprintf(stderr, "spendhook: %s\n", terminal.Escape(strings.ReplaceAll(err.Error(), "\n", "; "), ""))
	if bad, ok := errors.AsType[*kong.ParseError](err); ok {
		command := bad.Context.Selected()
		switch {
		case command == nil:
			command = bad.Context.Model.Node
		case command.Parent.DefaultCmd == command: // a mistyped name of a command is read as an argument of this one
			command = command.Parent
		}
		fmt.Fprintf(stderr, "Run '%s --help'.\n", command.FullPath())
		return exitUsage
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	if advice := remote.Advice(err); advice != "" {
		fmt.Fprintln(stderr, advice)
	}
	return int(remote.KindOf(err))
}
