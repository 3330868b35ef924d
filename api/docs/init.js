const documents = { api: '/openapi.json', webhooks: '/webhooks.json' };
const shown = new Set();

// show brings one document to the front, and renders it when it is asked for first.
function show(name) {
  for (const other of Object.keys(documents)) {
    document.getElementById(other).hidden = other !== name;
    const link = document.querySelector(`nav a[href="#${other}"]`);
    if (other === name) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  if (shown.has(name)) return;
  shown.add(name);
  SwaggerUIBundle({
    url: documents[name],
    dom_id: '#' + name,
    deepLinking: true,
    docExpansion: name === 'api' ? 'none' : 'list',
    filter: name === 'api',
    validatorUrl: null,
  });
}

// Links into a document, such as #/Events/ingestEvents, are the API's, but for those
// into the webhooks.
function named(hash) {
  const name = hash.slice(1);
  if (name in documents) return name;
  return decodeURIComponent(name).startsWith('/webhooks/') ? 'webhooks' : 'api';
}

for (const name of Object.keys(documents)) {
  document.querySelector(`nav a[href="#${name}"]`).addEventListener('click', () => show(name));
}
addEventListener('popstate', () => show(named(location.hash)));
show(named(location.hash));
