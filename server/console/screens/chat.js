// Chat: one conversation with a model, or with two on the same prompts.

import {h, fill, button, empty} from '../lib/dom.js';
import {curl} from '../lib/curl.js';
import {clip, download, visible, when} from '../lib/text.js';
import {Lane} from '../chat/lane.js';
import {settings} from '../chat/settings.js';
import {besideOf, loadChats, messagesOf, newChat, path, saveChats, titleOf} from '../chat/tree.js';

// The embedded model knows only stories.
const STORIES = ['Tell me a story about a dog.', 'Tell me a story about a cat and a ball.', 'A story about a bird who cannot sing.'];
const EXAMPLES = ['Explain to a child why the sky is blue.', 'Write a haiku about rain.', 'Which three questions should I ask before renting a flat?'];

class ChatScreen {
  constructor(root, app) {
    this.app = app;
    this.root = root;
    this.served = [];
    this.lanes = [];
    this.chats = loadChats();
    this.side = h('aside.settings', {'aria-label': 'Settings', hidden: true, id: 'chat-settings', onkeydown: (event) => { if (event.key === 'Escape') { this.toggleSettings(); this.tune.focus(); } }});
    this.columns = h('div.lanes');
    this.welcome = h('div');
    this.title = h('h1.grow');
    this.compare = button('Compare', () => this.toggleCompare(), {'aria-pressed': 'false'});
    this.tune = button('Settings', () => this.toggleSettings(), {'aria-expanded': 'false', 'aria-controls': 'chat-settings'});
    this.input = h('textarea', {rows: 1, 'aria-label': 'Message', placeholder: 'Write a message', dir: 'auto', oninput: () => this.typed(), onkeydown: (event) => this.key(event)});
    this.go = h('button.primary', {type: 'submit'}, 'Send');
    this.curl = curl(() => this.lanes.map((lane) => ({method: 'POST', path: '/v1/chat/completions', body: lane.body(this.input.value.trim() || 'Hello')})));
    fill(root, h('header', null, this.title, h('div.row', null,
      button('New', () => this.open(newChat(this.chat.lanes[0].model)), {'aria-label': 'New chat'}), button('Chats', () => this.list()),
      this.compare, this.tune)),
    h('div.stage', null, h('div.talk', null, this.welcome, this.columns,
      h('form.composer', {onsubmit: (event) => { event.preventDefault(); this.submit(); }}, this.input, this.go),
      h('div.row', null, this.curl, h('small.muted', null, 'Enter sends, Shift+Enter breaks the line.'))), this.side));
    this.open(this.chats[0] ?? newChat(''));
    this.load();
  }

  async load() {
    try {
      this.served = (await this.app.models()).filter((m) => m.capabilities?.includes('chat') ?? true);
    } catch (error) {
      this.failed = this.app.sentence(error);
      return this.showWelcome();
    }
    this.failed = null;
    const {params} = this.app;
    const asked = params.get('model'), beside = params.get('beside');
    if (asked) {
      const chat = newChat(asked);
      if (beside) chat.lanes.push(besideOf(chat.lanes[0], beside));
      this.open(chat);
    }
    for (const lane of this.lanes) {
      lane.data.model ||= this.served[0]?.id ?? '';
      lane.showModels(this.served);
    }
    this.showWelcome();
    this.input.focus({preventScroll: true});
  }

  open(chat) {
    this.stop();
    this.chat = chat;
    for (const lane of chat.lanes) lane.model ||= this.served[0]?.id ?? '';
    this.build();
    fill(this.side, h('h2', null, 'Settings'), settings(chat, (isReset) => { if (isReset) this.open(chat); this.curl.update(); clearTimeout(this.saving); this.saving = setTimeout(() => this.save(), 500); }));
  }

  build() {
    // A lane that still answers goes on.
    this.lanes = this.chat.lanes.map((data) => this.lanes.find((lane) => lane.data === data) ?? new Lane(data, this));
    this.lanes.forEach((lane, i) => {
      const side = this.lanes.length > 1 ? ` ${i + 1}` : '';
      lane.el.setAttribute('aria-label', `Conversation${side}`);
      lane.scroller.setAttribute('aria-label', `Messages${side}`);
      lane.select.setAttribute('aria-label', `Model${side}`);
      lane.showModels(this.served);
      lane.close.hidden = !side;
    });
    fill(this.columns, this.lanes.map((lane) => lane.el));
    for (const {scroller} of this.lanes) scroller.scrollTop = scroller.scrollHeight;
    this.root.classList.toggle('two', this.lanes.length > 1);
    this.compare.setAttribute('aria-pressed', String(this.lanes.length > 1));
    this.changed();
  }

  // Called by lanes after each change; `isComplete`: an answer has ended.
  changed(isComplete = false) {
    if (this.lanes.length === 0) return;
    const busy = this.lanes.some((lane) => lane.busy);
    this.go.textContent = busy ? 'Stop' : 'Send';
    this.title.replaceChildren(clip(visible(titleOf(this.chat)), 60));
    this.title.dir = 'auto';
    this.showWelcome();
    this.curl.update();
    if (isComplete) this.save();
  }

  save() {
    if (!this.chat.lanes.some((lane) => lane.nodes.length)) return;
    this.chats = [this.chat, ...this.chats.filter((chat) => chat.id !== this.chat.id)];
    if (!saveChats(this.chats) && !this.warned) {
      this.warned = true;
      this.app.toast('This conversation is too long to be kept in the browser. Export it to keep it.', true);
    }
  }

  showWelcome() {
    const isNew = this.chat.lanes.every((lane) => lane.nodes.length === 0);
    this.welcome.hidden = !isNew;
    this.columns.classList.toggle('new', isNew);
    if (!isNew) return;
    if (this.failed) {
      fill(this.welcome, empty('The models could not be listed', visible(this.failed), button('Try again', () => this.load())));
    } else if (this.served.length === 0) {
      fill(this.welcome, empty('No model is loaded yet', 'The server may still be loading one. Models that this server has are listed by GET /v1/models.', button('Look again', () => this.load())));
    } else {
      fill(this.welcome, empty('Talk to a model', 'Nothing leaves this server. Try one of these:',
        (this.chat.lanes[0].model.includes('stories') ? STORIES : EXAMPLES).map((text) => button(text, () => { this.input.value = text; this.submit(); }, {class: 'example'}))));
    }
  }

  typed() {
    this.input.style.height = 'auto';
    this.input.style.height = `${Math.min(this.input.scrollHeight + 2, 260)}px`;
    this.curl.update();
  }

  key(event) {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.submit(); }
  }

  submit() {
    if (this.lanes.some((lane) => lane.busy)) return this.stop();
    const text = this.input.value;
    if (!text.trim()) return this.input.focus();
    if (!this.lanes[0].data.model) return this.load();
    this.input.value = '';
    this.typed();
    for (const lane of this.lanes) lane.send(text);
    this.input.focus();
  }

  stop() { for (const lane of this.lanes) lane.stop(); }

  toggleCompare() {
    if (this.lanes.length > 1) return this.closeLane(this.lanes[1]);
    const [first] = this.chat.lanes;
    const own = this.served.find((m) => m.id === first.model);
    // A fine-tune beside its base, if that is served; else any other model, else the same one.
    const other = this.served.find((m) => m.id === own?.parent) ?? this.served.find((m) => m.id !== first.model) ?? own;
    this.chat.lanes.push(besideOf(first, other?.id ?? first.model));
    this.build();
    this.lanes[1].select.focus();
  }

  closeLane(lane) {
    lane.stop();
    this.chat.lanes = this.chat.lanes.filter((data) => data !== lane.data);
    this.build();
    this.save();
  }

  toggleSettings() {
    this.side.hidden = !this.side.hidden;
    this.tune.setAttribute('aria-expanded', String(!this.side.hidden));
    if (!this.side.hidden) this.side.querySelector('textarea').focus();
  }

  export() {
    const {chat} = this;
    const chats = chat.lanes.map((lane) => ({model: lane.model, messages: messagesOf(chat, path(lane))}));
    download(`chat-${new Date(chat.at).toISOString().slice(0, 10)}.json`, JSON.stringify({format: 'tandem-chat', shown: chats, ...chat}, null, 1));
  }

  list() {
    const {app} = this;
    app.dialog('Chats', (close) => {
      const items = h('ul.chats');
      const draw = () => fill(items, this.chats.length ? this.chats.map((chat) => h('li.row', null,
        button(clip(visible(titleOf(chat)), 60), () => { close(true); this.open(chat); }, {class: 'grow', 'aria-current': chat.id === this.chat.id ? 'true' : null}),
        h('small.muted', null, when(chat.at / 1000)),
        button('×', () => {
          this.chats = this.chats.filter((other) => other !== chat);
          saveChats(this.chats);
          if (chat === this.chat) this.open(newChat(chat.lanes[0].model));
          draw();
        }, {class: 'plain', 'aria-label': `Delete ${clip(visible(titleOf(chat)), 60)}`}))) : h('li.muted', null, 'None yet. Conversations are kept in this browser only.'));
      draw();
      return [items, h('div.row.end', null, button('Export this chat', () => this.export()), button('Delete all', () => {
        this.chats = [];
        saveChats([]);
        this.open(newChat(this.chat.lanes[0].model));
        close(true);
      }, {class: 'danger', disabled: this.chats.length === 0}), button('Close', () => close(true)))];
    });
  }
}

let screen = null;
export function mount(root, app) { screen = new ChatScreen(root, app); }
export function unmount() { screen.stop(); screen = null; }
