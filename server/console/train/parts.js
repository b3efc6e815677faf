// What the views of the Train screen share.

import {h} from '../lib/dom.js';
import {visible} from '../lib/text.js';

const OVER = ['succeeded', 'failed', 'cancelled'];
const WORDS = {validating_files: 'checking the file', queued: 'waiting', running: 'running', paused: 'paused', succeeded: 'finished', failed: 'failed', cancelled: 'cancelled'};

export const isOver = (job) => OVER.includes(job.status);
export const stateTag = (status) => h(`span.tag${status === 'failed' ? '.bad' : status === 'succeeded' ? '.good' : ''}`, null, WORDS[status] ?? visible(status));

// A link into the Chat screen with both models chosen.
export const chatLink = (model, base, text = 'Chat with it', props = {}) =>
  h('a.button', {href: `#/chat?${new URLSearchParams({model, beside: base})}`, title: visible(model), ...props}, text);
