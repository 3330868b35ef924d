package main

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"spendhook/api/client"
	"spendhook/cmd/spendhook/remote"
	"spendhook/config"
	"spendhook/console"
	"spendhook/console/login"
	"spendhook/console/session"
	"spendhook/dispatcher/workqueue/storedformat"
	"spendhook/internal/egress"
)

type consoleCmd struct {
	remote.Connection

	AllCompanies bool          `help:"The session sees all companies. The token must not be tied to a company."`
	Scope        string        `help:"Scopes of the session, separated by spaces (default: those of the token)."`
	ReadOnly     bool          `help:"The session is read-only."`
	Lifetime     time.Duration `default:"8h" help:"How long the session lasts, 1m to 12h."`
	Browser      bool          `name:"open" help:"Open the link in the browser of this machine."`
}

// Run prints a link into the web console. The link opens one session and is valid for a minute.
func (c *consoleCmd) Run(ctx context.Context, term *stdio) error {
	api, err := c.Open(term)
	if err != nil {
		return err
	}
	request := client.ConsoleLinkRequest{
		CompanyUUID: c.CompanyUUID, AllCompanies: &c.AllCompanies, ReadOnly: &c.ReadOnly, LifetimeSeconds: new(int(c.Lifetime.Seconds())),
	}
	if scopes := strings.Fields(c.Scope); len(scopes) > 0 {
		request.Scopes = &scopes
	}
	answer, err := api.CreateConsoleLinkWithResponse(ctx, &client.CreateConsoleLinkParams{}, request)
	if err != nil {
		return err
	}
	link := answer.JSON201.URL
	if _, err := fmt.Fprintln(term.Out, link); err != nil {
		return err
	}
	if c.Browser {
		return openBrowser(ctx, link)
	}
	return nil
}

// consoleLogin checks the provider at which users of the console sign in.
func (d *doctor) consoleLogin(ctx context.Context) {
	provider, err := newLogin(d.cfg, login.Options{})
	switch {
	case err != nil:
		d.problem("correct the settings of console.login", "%v", err)
	case provider == nil:
		d.okText = "not configured: only links open the console (console.login.issuer)"
	default:
		if err := provider.Check(ctx); err != nil {
			d.problem("correct console.login.issuer, or start the provider; until then nobody can sign in, and links still open the console", "%v", err)
		}
	}
}

// openBrowser opens a URL that the daemon returned in the system's browser.
func openBrowser(ctx context.Context, url string) error {
	if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") {
		return fmt.Errorf("the link is no http or https URL: %q", url)
	}
	name, args := "xdg-open", []string{url}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", url}
	}
	if err := exec.CommandContext(ctx, name, args...).Run(); err != nil { //nolint:gosec // no shell interprets the URL
		return fmt.Errorf("open the browser: %w; open the link above by hand", err)
	}
	return nil
}

// newLogin returns the provider at which users of the console sign in; nil without console.login.issuer.
func newLogin(cfg *config.Config, opts login.Options) (*login.Login, error) {
	l := cfg.Console.Login
	if l.Issuer == "" {
		return nil, nil //nolint:nilnil // only links open the console
	}
	opts.Issuer, opts.ClientID, opts.ClientSecret = l.Issuer, l.ClientID, l.ClientSecret
	opts.Scopes, opts.GroupsClaim, opts.CompanyClaim = l.Scopes, l.GroupsClaim, l.CompanyClaim
	for _, r := range l.Roles {
		opts.Roles = append(opts.Roles, login.Role{Group: r.Group, Name: r.Role, Company: r.Company})
	}
	opts.NeedsCertificate = loginCertificates(cfg)
	return login.New(opts)
}

// loginCertificates says for which groups of operations a user who signs in needs a client certificate.
func loginCertificates(cfg *config.Config) map[string]bool {
	if cfg.Console.Login.ClientCertificates == "optional" {
		return nil
	}
	return cfg.CertificateRequired()
}

// webConsole is the handler of the web console.
func (d *daemon) webConsole() (http.Handler, error) {
	provider, err := newLogin(d.cfg, login.Options{
		RedirectURL: strings.TrimRight(d.publicURL(), "/") + "/console/login/callback",
		Once:        d.sessions.FinishLogin, Logger: d.log, Registerer: d.registry,
	})
	if err != nil {
		return nil, fmt.Errorf("console.login: %w", err)
	}
	return console.New(console.Options{
		Sessions: d.sessions, Subscribers: d.subscribers, Health: d.health, Certificates: d.certificates, Registry: d.subscriberRegistry, Full: d.memoryFull, Publisher: d.publisher, Events: d.events, Catalogue: d.catalogue, EventTypes: d.eventTypes,
		Deliveries: d.dispatcher.Deliveries, Redelivery: d.dispatcher.Redelivery, Inspector: d.inspector, Challenger: d.challenger, Contacts: d.contacts, Dispatcher: d.dispatcher, Traffic: d.traffic, Tail: d.tail,
		CardJobs: d.cards, Companies: d.companies, Clients: d.clients, System: &systemStatus{daemon: d, since: time.Now()}, Audit: d.audit,
		Login: provider, Accepts: d.acceptsAsker, CertificateRequired: d.cfg.CertificateRequired()["console"], Peers: d.peers, Limiter: d.limiter,
		Logger: d.log,
	})
}

// acceptsAsker reports whether tokens like the one of an asker are still accepted, or users may still sign in at the
// provider. The developer's link has no token.
func (d *daemon) acceptsAsker(a session.Asker) bool {
	if a.Login {
		return a.Issuer == d.cfg.Console.Login.Issuer
	}
	return a.Issuer == "" || d.verifier.Accepts(a.Issuer, a.KeyID, a.ClientID)
}

// developerLink creates a console link for the developer who started the daemon with --dev.
func (d *daemon) developerLink(ctx context.Context) (string, error) {
	link, err := d.sessions.CreateLink(ctx, session.Grant{
		Company: &developerCompany, Scopes: developerScopes, Lifetime: session.MaxLifetime, Asker: session.Asker{Subject: "developer"},
	})
	return d.publicURL() + "/console/open?link=" + link.Secret, err
}

// systemStatus provides the status of the daemon's components for the console.
type systemStatus struct {
	*daemon

	since time.Time
}

// Status reads the running replicas from Redis. The rest comes from the daemon's watches.
func (s *systemStatus) Status(ctx context.Context) (console.Status, error) {
	redis := s.redis.Check(ctx)
	memory := s.memory.Fullest()
	status := console.Status{
		Version: readBuild().Version, Replica: s.replica, Since: s.since,
		Redis:           console.Part{Up: redis.Up, Problems: slices.Concat(redis.Problems, redis.Down), Warnings: append(redis.Warnings, s.memory.Warnings()...)},
		Database:        console.Part{Up: !s.database.down.Load(), Warnings: s.database.warnings()},
		EgressAddresses: slices.DeleteFunc(slices.Clone(*s.egressAddresses.Load()), func(a egress.Source) bool { return a.Ended(time.Now()) }),
		Memory:          console.Memory{Used: memory.Used, Limit: memory.Limit, HighWater: memory.HighWater},
	}
	formats, err := storedformat.Read(ctx, s.redis.Client())
	if err != nil {
		return status, err
	}
	for _, r := range formats.Readers {
		status.Replicas = append(status.Replicas, r.Replica)
	}
	partitions := formats.Partitions[:]
	status.Formats = fmt.Sprintf("%d in format %s", len(partitions), formatRange(slices.Min(partitions), slices.Max(partitions)))
	return status, nil
}
