// What the page keeps: bounded, whatever comes. The oldest points and buckets go.

const NUMBERS = ["at", "predicted", "actual", "bound", "predictedWait", "wait", "waitBound"];
const MOST_NAMES = 4096;

// The places of a point's fields in its array: leadsman_fleet/page/shown.py, Point.
const FIELDS = [1, 3, 4, 5, 6, 7, 8];

export class Points {
  // A ring of columns: no object a point, so nothing for the garbage collector to walk.
  constructor(most) {
    this.most = most;
    this.ids = new Array(most).fill("");
    this.columns = NUMBERS.map(() => new Float64Array(most));
    NUMBERS.forEach((name, i) => { this[name] = this.columns[i]; });
    this.matched = new Int8Array(most);  // 1, 0, and -1 where the engine did not say
    this.worker = new Uint16Array(most);
    this.names = [];
    this.numbers = new Map();
    this.came = 0;
  }

  get length() { return Math.min(this.came, this.most); }

  // The place of the i-th newest.
  latest(i) { return (this.came - 1 - i) % this.most; }

  add(point) {
    const place = this.came++ % this.most;
    this.ids[place] = point[0];
    this.worker[place] = this.number(point[2]);
    for (let i = 0; i < FIELDS.length; i++) {
      const value = point[FIELDS[i]];
      this.columns[i][place] = value === null ? NaN : value;
    }
    this.matched[place] = point[9] === null ? -1 : Number(point[9]);
  }

  nameOf(place) { return this.names[this.worker[place]]; }

  number(name) {
    let number = this.numbers.get(name);
    if (number === undefined) {
      if (this.names.length >= MOST_NAMES) this.forgetNames();
      number = this.names.push(name) - 1;
      this.numbers.set(name, number);
    }
    return number;
  }

  // Workers come and go for days: keep the names of those that points are still of.
  forgetNames() {
    const old = this.names, renumbered = new Map();
    this.names = [];
    for (let place = 0; place < this.length; place++) {
      const was = this.worker[place];
      if (!renumbered.has(was)) renumbered.set(was, this.names.push(old[was]) - 1);
      this.worker[place] = renumbered.get(was);
    }
    this.numbers = new Map(this.names.map((name, number) => [name, number]));
  }
}

export class Store {
  constructor(state) {
    this.pool = state.pool;
    this.pools = state.pools;
    this.decides = state.decides;
    this.width = state.width;
    this.mostBuckets = Math.ceil(3600 / state.width);
    this.points = new Points(state.most_points);
    this.buckets = state.buckets;
    this.speeds = new Map(Object.entries(state.speeds));
    this.workers = [];
    this.at = 0;
    for (const point of state.points) this.points.add(point);
  }

  take(tick) {
    this.at = tick.at;
    this.workers = tick.workers;
    const there = new Set(tick.workers.map((one) => one.worker));
    for (const [name, speed] of Object.entries(tick.speeds)) this.speeds.set(name, speed);
    for (const name of this.speeds.keys()) if (!there.has(name)) this.speeds.delete(name);
    for (const point of tick.points) this.points.add(point);
    for (const bucket of tick.buckets) this.count(bucket);
  }

  count(bucket) {
    const place = this.buckets.findLastIndex((one) => one.at <= bucket.at);
    if (place >= 0 && this.buckets[place].at === bucket.at) this.buckets[place] = bucket;
    else this.buckets.splice(place + 1, 0, bucket);
    const oldest = this.at - this.mostBuckets * this.width;
    while (this.buckets.length && this.buckets[0].at < oldest) this.buckets.shift();
  }

  // Minutes of the last hour: {at, refused: {reason: n}}, and sums.
  hour() {
    const reasons = new Map(), minutes = new Map();
    let admitted = 0, refused = 0;
    for (const bucket of this.buckets) {
      const at = bucket.at - bucket.at % 60;
      if (!minutes.has(at)) minutes.set(at, {});
      admitted += bucket.admitted;
      for (const [reason, number] of Object.entries(bucket.refused)) {
        minutes.get(at)[reason] = (minutes.get(at)[reason] ?? 0) + number;
        reasons.set(reason, (reasons.get(reason) ?? 0) + number);
        refused += number;
      }
    }
    return { reasons: new Map([...reasons].sort()), minutes, admitted, refused };
  }
}
