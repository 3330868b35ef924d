package remote

import (
	"context"

	"github.com/google/uuid"

	"spendhook/api/client"
)

type consoleSessionCmd struct {
	group

	List consoleSessionListCmd `cmd:"" help:"List open sessions, the last to expire first. With the scope operator: all sessions of the company. Otherwise: the sessions whose links these credentials created." example:"spendhook console-session list --all"`
	End  consoleSessionEndCmd  `cmd:"" help:"End a session. Its next request is refused." example:"spendhook console-session end 5d2f7a10-8c3e-8b41-9f06-2a7c4e8d1b93 --yes"`
}

type consoleSessionListCmd struct{ listFlags }

// Run lists the sessions.
func (c *consoleSessionListCmd) Run(ctx context.Context, s *session) error {
	t := table{
		{"UUID", "uuid"},
		{"COMPANY", "companyUuid"},
		{"ASKED BY", "askedBy.subject"},
		{"ADDRESS", "address"},
		{"READ-ONLY", "readOnly"},
		{"OPENED", "openedAt"},
		{"IDLE UNTIL", "idleUntil"},
		{"EXPIRES", "expiresAt"},
	}
	return s.list(ctx, c.listFlags, t, pages(s, s.ListConsoleSessions))
}

type consoleSessionEndCmd struct {
	confirmation
	UUID         uuid.UUID `arg:"" name:"uuid" predictor:"console-session" help:"Id of the session."`
	AllCompanies bool      `help:"Find the session in any company (scope platform)."`
}

// Run ends the session.
func (c *consoleSessionEndCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(c.confirmation, "End session %s of the web console?", c.UUID); err != nil {
		return err
	}
	params := fields[client.EndConsoleSessionParams](s, *c)
	if c.AllCompanies {
		params.CompanyUUID = nil // ignore the company of the profile
	}
	resp, err := s.EndConsoleSession(ctx, c.UUID, params)
	return s.tell(resp, err, "ended")
}
