package remote

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"spendhook/api/client"
)

type consoleSessionCmd struct {
	group

	List consoleSessionListCmd `cmd:"" help:"List the open sessions, the last to end first: all of the company with the scope operator, else those for whose links these credentials asked." example:"spendhook console-session list --all"`
	End  consoleSessionEndCmd  `cmd:"" help:"End a session: its browser is out with its next request." example:"spendhook console-session end 5d2f7a10-8c3e-8b41-9f06-2a7c4e8d1b93 --yes"`
}

type consoleSessionListCmd struct{ listing }

// Run lists them.
func (c *consoleSessionListCmd) Run(ctx context.Context, s *session) error {
	t := table{
		{"UUID", "uuid"}, {"COMPANY", "companyUuid"}, {"ASKED BY", "askedBy.subject"}, {"ADDRESS", "address"}, {"READ-ONLY", "readOnly"},
		{"OPENED", "openedAt"}, {"ENDS UNUSED", "idleUntil"}, {"ENDS", "expiresAt"},
	}
	return s.list(ctx, c.listing, t, func(ctx context.Context, at page) (*http.Response, error) {
		return s.ListConsoleSessions(ctx, fields[client.ListConsoleSessionsParams](s, at))
	})
}

type consoleSessionEndCmd struct {
	careful
	UUID         uuid.UUID `arg:"" name:"uuid" predictor:"console-session" help:"The session."`
	AllCompanies bool      `help:"It may be tied to no company, or to any (scope platform)."`
}

// Run ends it.
func (c *consoleSessionEndCmd) Run(ctx context.Context, s *session) error {
	if err := s.mind(c.careful, "End session %s of the web console?", c.UUID); err != nil {
		return err
	}
	resp, err := s.EndConsoleSession(ctx, c.UUID, fields[client.EndConsoleSessionParams](s, *c))
	return s.tell(resp, err, "ended")
}
