/* Threads that make, use and destroy objects of one device at once. */

#include "laws.h"
#include <stdatomic.h>

enum {
	THREADS = 4,
	/* Requests of a round, and bytes of each. */
	REQUESTS = 8,
	LENGTH = 32,
	/* Bytes of a thread: what it sends, what it receives, and what it writes. */
	OWN = 3 * REQUESTS * LENGTH,
};

static atomic_int is_over, rounds;
/* A bit for each WRITE of a thread's round that somebody saw done on the CQ of all. */
static atomic_uint done[THREADS];

static void fill(char *bytes, int thread, int round)
{
	for (int n = 0; n < REQUESTS * LENGTH; n++)
		bytes[n] = (char)(thread * 64 + round * 7 + n);
}

/* Takes what there is on the CQ of all threads, be it a request of another one. */
static void take_shared(struct ibv_cq *shared)
{
	struct ibv_wc wc[4];
	int count = ibv_poll_cq(shared, 4, wc);
	LAW(count >= 0);
	for (int n = 0; n < count; n++) {
		unsigned thread = wc[n].wr_id >> 32, bit = 1u << (wc[n].wr_id & 31);
		LAW(wc[n].status == IBV_WC_SUCCESS && wc[n].opcode == IBV_WC_RDMA_WRITE);
		LAW(thread < THREADS && !(atomic_fetch_or(&done[thread], bit) & bit));
	}
}

/* All requests of one kind complete, in their order. */
static void take_own(struct ibv_cq *own, struct ibv_qp *from, struct ibv_qp *to)
{
	int sent = 0, received = 0;
	struct ibv_wc wc;
	for (long tries = 0; sent < REQUESTS || received < REQUESTS; tries++) {
		int count = ibv_poll_cq(own, 1, &wc);
		LAW(count >= 0 && tries < 100000000);
		if (count == 0)
			continue;
		LAW(wc.status == IBV_WC_SUCCESS);
		if (wc.qp_num == from->qp_num) {
			LAW(wc.opcode == IBV_WC_SEND && wc.wr_id == (uint64_t)sent++);
		} else {
			LAW(wc.qp_num == to->qp_num && wc.opcode == IBV_WC_RECV);
			LAW(wc.byte_len == LENGTH && wc.wr_id == (uint64_t)received++);
		}
	}
	LAW(ibv_poll_cq(own, 1, &wc) == 0);
}

/* SENDs from one QP to another of the thread, on a CQ of its own. */
static void round_of_its_own(char *bytes, struct ibv_mr *region)
{
	struct ibv_cq *own = ibv_create_cq(context, 2 * REQUESTS, NULL, NULL, 0);
	LAW(own);
	struct ibv_qp *from = make_qp(own), *to = make_qp(own);
	connect_to(from, to);
	connect_to(to, from);
	char *target = bytes + REQUESTS * LENGTH;
	memset(target, 0, REQUESTS * LENGTH);
	for (int n = 0; n < REQUESTS; n++) {
		struct ibv_sge in = { (uintptr_t)target + n * LENGTH, LENGTH, region->lkey };
		struct ibv_recv_wr *bad, wr = { .wr_id = n, .sg_list = &in, .num_sge = 1 };
		LAW(ibv_post_recv(to, &wr, &bad) == 0);
	}
	for (int n = 0; n < REQUESTS; n++) {
		struct ibv_sge out = { (uintptr_t)bytes + n * LENGTH, LENGTH, region->lkey };
		struct ibv_send_wr *bad, wr = { .wr_id = n, .sg_list = &out, .num_sge = 1,
						.opcode = IBV_WR_SEND,
						.send_flags = IBV_SEND_SIGNALED };
		LAW(ibv_post_send(from, &wr, &bad) == 0);
	}
	take_own(own, from, to);
	LAW(memcmp(bytes, target, REQUESTS * LENGTH) == 0);
	LAW(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0 && ibv_destroy_cq(own) == 0);
}

/* WRITEs of a QP to itself, whose completions any thread may take. */
static void round_of_all(struct ibv_cq *shared, unsigned thread, char *bytes,
			 struct ibv_mr *region)
{
	struct ibv_qp *qp = make_qp(shared);
	connect_to(qp, qp);
	char *target = bytes + 2 * REQUESTS * LENGTH;
	memset(target, 0, REQUESTS * LENGTH);
	for (int n = 0; n < REQUESTS; n++) {
		struct ibv_sge out = { (uintptr_t)bytes + n * LENGTH, LENGTH, region->lkey };
		struct ibv_send_wr *bad, wr = { .wr_id = (uint64_t)thread << 32 | n,
						.sg_list = &out, .num_sge = 1,
						.opcode = IBV_WR_RDMA_WRITE,
						.send_flags = IBV_SEND_SIGNALED };
		wr.wr.rdma.remote_addr = (uintptr_t)target + n * LENGTH;
		wr.wr.rdma.rkey = region->rkey;
		LAW(ibv_post_send(qp, &wr, &bad) == 0);
	}
	for (long tries = 0; done[thread] != (1u << REQUESTS) - 1; tries++) {
		LAW(tries < 100000000);
		take_shared(shared);
	}
	done[thread] = 0;
	LAW(memcmp(bytes, target, REQUESTS * LENGTH) == 0);
	LAW(ibv_destroy_qp(qp) == 0);
}

static struct ibv_cq *of_all;

static void *run(void *number)
{
	unsigned thread = (uintptr_t)number;
	static char bytes[THREADS][OWN];
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	for (int round = 0; !is_over; round++) {
		struct ibv_mr *region = ibv_reg_mr(pd, bytes[thread], OWN, access);
		LAW(region);
		fill(bytes[thread], thread, round);
		round_of_its_own(bytes[thread], region);
		round_of_all(of_all, thread, bytes[thread], region);
		LAW(ibv_dereg_mr(region) == 0);
		rounds++;
	}
	return NULL;
}

void threads_at_once(void)
{
	pthread_t threads[THREADS];
	struct ibv_wc wc;
	of_all = ibv_create_cq(context, THREADS * REQUESTS, NULL, NULL, 0);
	LAW(of_all);
	for (uintptr_t n = 0; n < THREADS; n++)
		LAW(pthread_create(&threads[n], NULL, run, (void *)n) == 0);
	sleep(1);
	is_over = 1;
	for (int n = 0; n < THREADS; n++)
		LAW(pthread_join(threads[n], NULL) == 0);
	LAW(rounds >= THREADS);
	LAW(ibv_poll_cq(of_all, 1, &wc) == 0 && ibv_destroy_cq(of_all) == 0);
}
