// Shared by the Node suites: the address, the expected answers, and the tool that agents call.

import { z } from 'zod';

export const url = process.env.TANDEM_URL;
export const base = `${url}/v1`;
export const key = process.env.TANDEM_TEST_API_KEY;
export const model = 'scripted';
export const expected = JSON.parse(process.env.TANDEM_TEST_SCRIPTS);

export const person = z.object({
  name: z.string(), age: z.number().int(), languages: z.array(z.string()),
});
export const report = z.object({ city: z.string(), degrees: z.number().int() });

const weather = { Paris: 'sunny, 21 °C', Oslo: 'snow, -3 °C' };
// The cities of the calls so far; tests clear it.
export const asked = [];

export function getWeather({ city }) {
  asked.push(city);
  return weather[city];
}
