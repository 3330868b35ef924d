// An OpenID provider for the tests. Anybody signs in under any name; the name before "-" is the user's group.
// Usage: node provider.mjs REDIRECT_URI [other]
// With "other" it has the other choice wherever providers differ.
import { createServer } from 'node:http';
import { generateKeyPairSync } from 'node:crypto';
import { Provider } from 'oidc-provider';

const [redirect, variant] = process.argv.slice(2);
const other = variant === 'other';
const key = other ? generateKeyPairSync('ec', { namedCurve: 'P-256' }) : generateKeyPairSync('rsa', { modulusLength: 2048 });
const auth = other ? 'client_secret_post' : 'client_secret_basic';

const server = createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://localhost:${server.address().port}`; // another site than the console's, to a browser
  const provider = new Provider(issuer, {
    clients: [{
      client_id: 'hooks', client_secret: 'a secret with: % + spaces', redirect_uris: [redirect],
      token_endpoint_auth_method: auth, id_token_signed_response_alg: other ? 'ES256' : 'RS256',
    }],
    clientAuthMethods: [auth],
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['groups', 'company'] },
    conformIdTokenClaims: !other, // whether the groups are in userinfo only
    jwks: { keys: [{ ...key.privateKey.export({ format: 'jwk' }), use: 'sig', kid: 'one' }] },
    pkce: { required: () => true },
    cookies: { keys: ['only for tests'] },
    ttl: { IdToken: 1800 },
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({
        sub: id, email: `${id}@example.com`, email_verified: true, groups: [id.split('-')[0]],
        company: ['aaaaaaaa-0000-4000-8000-000000000001', 'bbbbbbbb-0000-4000-8000-000000000002'],
      }),
    }),
  });
  server.on('request', provider.callback());
  console.log(`listening on ${issuer}`);
});
