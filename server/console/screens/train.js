// Train: the list of fine-tuning jobs, a new one, or a job while it runs. The address names the view.

import {NewJob} from '../train/form.js';
import {JobView} from '../train/job.js';
import {JobList} from '../train/list.js';

let view = null;
export function mount(root, app) {
  const {params} = app;
  if (params.get('job')) view = new JobView(root, app, params.get('job'));
  else if (params.get('new') || params.get('file') || params.get('model')) view = new NewJob(root, app);
  else view = new JobList(root, app);
}
export function unmount() { view.close(); view = null; }
