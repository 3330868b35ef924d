package api

import (
	"context"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/subscribers/certificate"
)

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
