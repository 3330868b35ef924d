const documents = { api: '/openapi.json', webhooks: '/webhooks.json' };
const shown = new Set();

// show displays one document. It renders a document when it is displayed for the first time.
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

// documentOf returns the document of a link such as #/Events/ingestEvents: the webhooks if the
// link begins with #/webhooks/, else the API.
function documentOf(hash) {
  const name = hash.slice(1);
  if (name in documents) return name;
  return decodeURIComponent(name).startsWith('/webhooks/') ? 'webhooks' : 'api';
}

for (const name of Object.keys(documents)) {
  document.querySelector(`nav a[href="#${name}"]`).addEventListener('click', () => show(name));
}
addEventListener('popstate', () => show(documentOf(location.hash)));
show(documentOf(location.hash));
