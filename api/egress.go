package api

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/subscribers/certificate"
)

// ListEgressAddresses is GET /api/v1/egress-addresses.
func (s *server) ListEgressAddresses(context.Context, *request) (reply, error) {
	return s.egressAddresses()
}

// GetPublicEgressAddresses is GET /.well-known/egress-addresses.json.
func (s *server) GetPublicEgressAddresses(context.Context, *request) (reply, error) {
	rep, err := s.egressAddresses()
	return rep.with("Cache-Control", cacheable), err
}

// egressAddresses answers with the published addresses that have not ended.
func (s *server) egressAddresses() (reply, error) {
	all := s.opts.EgressAddresses()
	if len(all) == 0 {
		return reply{}, newProblem("NO_EGRESS_ADDRESSES", "The operator publishes no addresses from which deliveries come.")
	}
	now, shown := s.opts.Now(), []gen.EgressAddress{}
	for _, source := range all {
		if !source.Ended(now) {
			shown = append(shown, gen.EgressAddress{Cidr: source.Range.String(), ValidFrom: shownTime(source.From), ValidUntil: shownTime(source.Until)})
		}
	}
	return ok(gen.EgressAddresses{Addresses: shown}), nil
}

// shownTime returns nil for the zero time, so that it is left out.
func shownTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// GetEgressCertificate is GET /api/v1/egress-certificate.
func (s *server) GetEgressCertificate(ctx context.Context, q *request) (reply, error) {
	found, err := s.opts.Certificates.Get(ctx, q.company)
	if err != nil {
		return reply{}, err
	}
	return ok(shownCertificate(q.company, found)), nil
}

// SetEgressCertificate is PUT /api/v1/egress-certificate.
func (s *server) SetEgressCertificate(ctx context.Context, q *request, in gen.EgressCertificateInput) (reply, error) {
	q.auditTarget(&q.company, "egress_certificate", q.company.String())
	set, err := s.opts.Certificates.Set(ctx, q.company, certificate.Input{Chain: in.CertificateChain, PrivateKey: in.PrivateKey})
	if err != nil {
		return reply{}, err
	}
	q.auditDetail("x5t#S256 " + set.Thumbprint)
	return ok(shownCertificate(q.company, set)), nil
}

// DeleteEgressCertificate is DELETE /api/v1/egress-certificate.
func (s *server) DeleteEgressCertificate(ctx context.Context, q *request, _ gen.CompanyScope) (reply, error) {
	q.auditTarget(&q.company, "egress_certificate", q.company.String())
	return noContent(), s.opts.Certificates.Remove(ctx, q.company)
}

// shownCertificate returns the published form, without the private key.
func shownCertificate(company uuid.UUID, c *certificate.Certificate) gen.EgressCertificate {
	return gen.EgressCertificate{
		CompanyUUID: company, Subject: c.Subject, Issuer: c.Issuer, Thumbprint: c.Thumbprint,
		NotBefore: c.NotBefore, NotAfter: c.NotAfter, UpdatedAt: c.UpdatedAt,
	}
}
