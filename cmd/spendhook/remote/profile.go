package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/google/uuid"
	"golang.org/x/term"

	"spendhook/api/client"
	"spendhook/internal/datadir"
	"spendhook/internal/terminal"
)

// profile has the data of one daemon that login stores, in a file that only its user can read.
type profile struct {
	URL          string     `json:"url"`
	ClientID     string     `json:"clientId"`
	ClientSecret string     `json:"clientSecret,omitempty"`
	Scope        string     `json:"scope,omitempty"`
	CACert       string     `json:"cacert,omitempty"`
	Cert         string     `json:"cert,omitempty"`
	Key          string     `json:"key,omitempty"`
	CompanyUUID  *uuid.UUID `json:"companyUuid,omitempty"`
}

// configDir returns $XDG_CONFIG_HOME/spendhook, else %AppData%\spendhook on Windows, and
// ~/.config/spendhook elsewhere.
func configDir() (string, error) {
	if dir := os.Getenv("XDG_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, "spendhook"), nil
	}
	if runtime.GOOS == "windows" {
		dir, err := os.UserConfigDir()
		return filepath.Join(dir, "spendhook"), err
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".config", "spendhook"), err
}

var profileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// fileOf returns the path of a profile's file; kind is "profiles" or "tokens".
func fileOf(kind, name string) (string, error) {
	if !profileName.MatchString(name) {
		return "", UsageError(fmt.Sprintf("%q is not a valid profile name: use at most 64 of A-Z a-z 0-9 . _ -", name))
	}
	dir, err := configDir()
	return filepath.Join(dir, kind, name+".json"), err
}

// readProfile reads a profile. The profile "default" is empty if it does not exist; any other
// profile must exist.
func readProfile(name string) (p profile, err error) {
	path, err := fileOf("profiles", name)
	if err != nil {
		return p, err
	}
	err = readPrivate(path, &p)
	if errors.Is(err, fs.ErrNotExist) && name == "default" {
		return p, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return p, fmt.Errorf("there is no profile %q; create it with 'spendhook login --profile %s'", name, name)
	}
	return p, err
}

// readPrivate reads a file with a secret. It refuses a file that other users may read.
func readPrivate(path string, into any) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("others may read %s, which holds a secret: run 'chmod 600 %s', and give the client a new secret", path, path)
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// writePrivate creates or replaces a file that only its user can read.
func writePrivate(path string, content any) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	text, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return err
	}
	return datadir.Replace(path, append(text, '\n'))
}

// credentials returns credentials that reuse and store the token of the profile.
func (p profile) credentials(name string, stderr io.Writer) *client.Credentials {
	c := &client.Credentials{ID: p.ClientID, Secret: p.ClientSecret, Scope: p.Scope}
	path, err := fileOf("tokens", name)
	if err != nil {
		return c
	}
	if err := readPrivate(path, &c.Token); err != nil {
		c.Token = client.Token{} // the client requests a new token
	}
	c.Keep = func(token client.Token) {
		if err := writePrivate(path, token); err != nil {
			fmt.Fprintf(stderr, "cannot save the access token: %v\n", err)
		}
	}
	return c
}

type loginCmd struct {
	Connection

	ClientID         string `env:"SPENDHOOK_CLIENT_ID" help:"Id of the client."`
	ClientSecretFile string `placeholder:"FILE|-" help:"File with the client secret, - for standard input (default: SPENDHOOK_CLIENT_SECRET, or a prompt)."`
	NoSecret         bool   `help:"The client authenticates with its certificate only (--cert, --key)."`
	Scope            string `help:"Scopes to request, separated by spaces (default: all scopes of the client)."`
}

// Run gets a token with the credentials, and then saves the credentials and the token.
func (c *loginCmd) Run(ctx context.Context, t *Terminal) error {
	if c.ClientID == "" {
		return UsageError("--client-id is needed; the operator creates a client with 'spendhook client create'")
	}
	p := profile{URL: cmp.Or(strings.TrimRight(c.URL, "/"), localDaemon), ClientID: c.ClientID, Scope: c.Scope, CompanyUUID: c.CompanyUUID}
	for _, f := range []struct {
		to   *string
		from string
	}{{&p.CACert, c.CACert}, {&p.Cert, c.Cert}, {&p.Key, c.Key}} {
		if f.from == "" {
			continue
		}
		path, err := filepath.Abs(f.from)
		if err != nil {
			return err
		}
		*f.to = path
	}
	path, err := fileOf("profiles", c.Profile)
	if err != nil {
		return err
	}
	warnOfPlain(t, p.URL, "client secret")
	if p.ClientSecret, err = c.secret(t); err != nil {
		return err
	}
	transport, err := c.Transport()
	if err != nil {
		return err
	}
	credentials := &client.Credentials{ID: p.ClientID, Secret: p.ClientSecret, Scope: p.Scope}
	var token client.Token
	credentials.Keep = func(got client.Token) { token = got }
	api, err := client.New(p.URL, client.Options{Credentials: credentials, Insecure: true, Transport: transport, RetryFor: -1, UserAgent: "spendhook/" + t.Version})
	if err != nil {
		return UsageError("--url: " + err.Error())
	}
	// Any request gets a token. Its answer does not matter: the client may lack the scope.
	if _, err := api.ListEventTypesWithResponse(ctx); token.Access == "" {
		return fmt.Errorf("not logged in: %w", err)
	}
	if err := writePrivate(path, p); err != nil {
		return err
	}
	p.credentials(c.Profile, t.Err).Keep(token)
	_, err = fmt.Fprintf(t.Out, "logged in at %s as %s (profile %s)\n", p.URL, p.ClientID, c.Profile)
	return err
}

func (c *loginCmd) secret(t *Terminal) (string, error) {
	switch secret := os.Getenv("SPENDHOOK_CLIENT_SECRET"); {
	case c.NoSecret:
		return "", nil
	case c.ClientSecretFile != "":
		return readSecret(c.ClientSecretFile, t.In)
	case secret != "":
		return secret, nil
	case !terminal.Is(t.In):
		return "", UsageError("the client's secret is needed: --client-secret-file, or SPENDHOOK_CLIENT_SECRET")
	}
	fmt.Fprint(t.Err, "Client secret: ")
	secret, err := term.ReadPassword(int(t.In.(*os.File).Fd()))
	fmt.Fprintln(t.Err)
	return string(secret), err
}

type profileCmd struct {
	List   profileListCmd   `cmd:"" default:"withargs" help:"List the profiles." example:"spendhook profile list"`
	Delete profileDeleteCmd `cmd:"" help:"Delete a profile with its secret and token." example:"spendhook profile delete test"`
}

type profileListCmd struct{}

// Run lists the profiles.
func (profileListCmd) Run(t *Terminal) error {
	names, err := profiles()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(t.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PROFILE\tURL\tCLIENT\tCERTIFICATE")
	for _, name := range names {
		p, err := readProfile(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, p.URL, p.ClientID, cmp.Or(p.Cert, "-"))
	}
	return w.Flush()
}

// profiles returns the names of all profiles.
func profiles() ([]string, error) {
	dir, err := configDir()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(dir, "profiles"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok && profileName.MatchString(name) {
			names = append(names, name)
		}
	}
	return names, nil
}

type profileDeleteCmd struct {
	Name string `arg:"" predictor:"profile" help:"Name of the profile."`
}

// Run removes the files of the profile. Its token stays valid until it expires.
func (c *profileDeleteCmd) Run(t *Terminal) error {
	path, err := fileOf("profiles", c.Name)
	if err != nil {
		return err
	}
	token, err := fileOf("tokens", c.Name)
	if err != nil {
		return err
	}
	err = os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return UsageError(fmt.Sprintf("there is no profile %q: 'spendhook profile list' shows the profiles", c.Name))
	}
	if err != nil {
		return err
	}
	if err := os.Remove(token); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err = fmt.Fprintln(t.Out, "deleted")
	return err
}
