// Server: what runs now.
import {h, fill} from '../lib/dom.js';
import {request} from '../lib/api.js';

export async function mount(root, app) {
  const out = h('pre', {tabindex: 0});
  fill(root, h('h1', null, 'Server'), out);
  await app.try(async () => { out.textContent = await request('GET', '/metrics'); })();
}

export function unmount() {}
