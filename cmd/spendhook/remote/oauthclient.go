package remote

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spendhook/api/client"
	"spendhook/internal/clientcert"
)

type oauthClientCmd struct {
	group

	List         oauthClientListCmd   `cmd:"" help:"List the clients, the oldest first." example:"spendhook oauth-client list --all"`
	Get          oauthClientGetCmd    `cmd:"" help:"Show a client." example:"spendhook oauth-client get shc_df359699887e0c772d5757c5"`
	Create       oauthClientCreateCmd `cmd:"" help:"Create a client. Its secret is printed once." example:"spendhook oauth-client create --name ledger --for-company 6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11 --scope events:write"`
	Update       oauthClientUpdateCmd `cmd:"" help:"Disable or enable a client, or change its certificates." example:"spendhook oauth-client update shc_df359699887e0c772d5757c5 --disabled"`
	RotateSecret oauthClientRotateCmd `cmd:"" help:"Create a new secret for a client, printed once. The old secret stays valid for a while; an older one ends." example:"spendhook oauth-client rotate-secret shc_df359699887e0c772d5757c5 --overlap 1h"`
	Delete       oauthClientDeleteCmd `cmd:"" help:"Delete a client. Its tokens are refused within seconds." example:"spendhook oauth-client delete shc_df359699887e0c772d5757c5 --yes"`
}

type oauthClientListCmd struct{ listFlags }

// Run lists the clients.
func (c *oauthClientListCmd) Run(ctx context.Context, s *session) error {
	t := table{{"CLIENT", "clientId"}, {"NAME", "name"}, {"COMPANY", "companyUuid"}, {"DISABLED", "disabled"}, {"SCOPES", "scopes"}}
	return s.list(ctx, c.listFlags, t, pages(s, s.ListClients))
}

// oneOAuthClient is the argument of a command about one client.
type oneOAuthClient struct {
	ID string `arg:"" name:"client-id" help:"Id of the client."`
}

type oauthClientGetCmd struct{ oneOAuthClient }

// Run shows the client.
func (c *oauthClientGetCmd) Run(ctx context.Context, s *session) error {
	return s.show(s.GetClient(ctx, c.ID))
}

type oauthClientCreateCmd struct {
	confirmation
	Name         string     `required:"" help:"Description of the client."`
	ForCompany   *uuid.UUID `local:"" help:"Company that the client is tied to (default: none; its requests may name any company)."`
	Scopes       []string   `name:"scope" required:"" help:"Scope that the client may request, such as events:write; may repeat. docs/tokens.md lists them."`
	Certificates []string   `name:"certificate" placeholder:"FILE|THUMBPRINT" help:"Certificate that the client may present, as a PEM file or as x5t#S256; may repeat."`
	NoSecret     bool       `help:"The client authenticates with a certificate only."`
}

// Run creates a client and prints its secret.
func (c *oauthClientCreateCmd) Run(ctx context.Context, s *session) error {
	var err error
	if c.Certificates, err = clientcert.ThumbprintsOf(c.Certificates); err != nil {
		return err
	}
	if err := s.confirm(c.confirmation, ""); err != nil {
		return err
	}
	body := fields[client.OAuthClientInput](s, *c)
	body.CompanyUUID = c.ForCompany // not the company of the profile
	return s.show(s.CreateClient(ctx, &client.CreateClientParams{}, *body))
}

type oauthClientUpdateCmd struct {
	confirmation
	oneOAuthClient
	Disabled       *bool    `negatable:"" help:"Disable the client; --no-disabled enables it."`
	Certificates   []string `name:"certificate" xor:"list" placeholder:"FILE|THUMBPRINT" help:"Certificate that the client may present, as a PEM file or as x5t#S256; may repeat. Replaces all earlier ones."`
	AnyCertificate bool     `xor:"list" help:"Instead of --certificate: allow any certificate. The client then authenticates with its secret."`
}

// Run changes the client.
func (c *oauthClientUpdateCmd) Run(ctx context.Context, s *session) error {
	if c.Disabled == nil && len(c.Certificates) == 0 && !c.AnyCertificate {
		return UsageError("--disabled, --no-disabled, --certificate or --any-certificate is needed")
	}
	body := client.OAuthClientUpdate{Disabled: c.Disabled}
	if len(c.Certificates) > 0 || c.AnyCertificate {
		list, err := clientcert.ThumbprintsOf(c.Certificates)
		if err != nil {
			return err
		}
		body.Certificates = &list
	}
	if err := s.confirm(c.confirmation, ""); err != nil {
		return err
	}
	return s.show(s.UpdateClient(ctx, c.ID, body))
}

type oauthClientRotateCmd struct {
	confirmation
	oneOAuthClient
	Overlap time.Duration `default:"24h" help:"How long the old secret stays valid."`
}

// Run gives the client a new secret and prints the secret.
func (c *oauthClientRotateCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(c.confirmation, "Give client %s a new secret?", c.ID); err != nil {
		return err
	}
	seconds := int(c.Overlap.Seconds())
	return s.show(s.RotateClientSecret(ctx, c.ID, &client.RotateClientSecretParams{}, client.OAuthClientRotation{OverlapSeconds: &seconds}))
}

type oauthClientDeleteCmd struct {
	confirmation
	oneOAuthClient
}

// Run deletes the client.
func (c *oauthClientDeleteCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(c.confirmation, "Delete client %s? Its tokens will be refused.", c.ID); err != nil {
		return err
	}
	resp, err := s.DeleteClient(ctx, c.ID)
	return s.tell(resp, err, "deleted")
}
